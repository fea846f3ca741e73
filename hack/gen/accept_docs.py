"""Page docs/accept-checks.md: generated from the registry of checks and the tables of limits and
figures.
"""

from __future__ import annotations

import math
import re
import sys

from hack.paths import REPO

HEAD = """\
<!-- Generated from worker/src/gpuworker/accept by `make generate`. -->
# Checks of the acceptance tests

Reference of every check, number, limit and fault. How to run them, and what the verdicts mean:
[gpu-accept.md](gpu-accept.md).

## On one node

`accept-node` runs these checks.
"""
AFTER_CHECKS = """
The times are estimates for a healthy node of 8 GPUs, not yet measured. Those of burn-in are shares of
`--burn-in-seconds` (3600). Each check has a process of its own, and those of ranks (training, collectives,
correctness, stragglers, storage) a world of their own. On the CPU all of `quick` takes seconds. A check is ended after
three times its time plus 30 s (300 s in a rehearsal).

`environment` runs first, also where other checks are named: what it finds decides which limits hold, and without all
GPUs no other check runs. Its entry is then in the report only if it explains something.

On one H100 `quick` took [50 s](../hack/gpu/results/h100-80gb-measured.md), when checks still shared processes, and
[all faults but two](../hack/gpu/results/h100-80gb.md) were found, two of them by a limit, since one GPU has no peers to
be slower than. What needs two GPUs has run in rehearsals on CPUs only.

A check that cannot apply, for example links between GPUs on a node with one GPU, is SKIP, which is never the verdict of
a node. A number without a limit is reported, and judged only if you set a limit by its name. Nodes are [compared with
each other](gpu-accept.md#comparison-with-the-other-nodes); a difference up to the noise of a number, in its unit, is no
finding.

## Across nodes

`ddp-tests` runs these checks between all ranks of a torchrun world, for example
`ddp-launch -m gpuworker.accept.ddp_tests --bad-nodes --collectives`. Rank 0 writes `report-world.json`, a report of
scope `world`. `accept-report` shows it with the reports of the nodes.

| check | flag | proves |
|---|---|---|
"""
WATCHES = """
## Only with a problem

A report has these entries beside its checks, and only if they found something:

| entry | what it is about |
|---|---|
"""
# Entries of the runner itself. Those of a watch are described where it is.
RUNNER = {
    "fabric": "Links of this node while the checks run: ports that go down, errors that links count.",
    "xids": "Xids, the errors of NVIDIA's driver, while the checks run.",
    "accepted": "Numbers or bits of a GPU are worse than in the file of `--accepted`; only of a prolog.",
    "start": "An earlier attempt of this run was killed before it wrote a report.",
    "limits": "A limit is refused.",
    "runner": "The tests themselves ended with an error.",
    "report": "The report could not be written to its folder.",
}
LIMITS = """\
## Limits

A limit is a share of a figure. Of a GPU model this is the *sustained* figure (healthy GPUs on a loaded node), else the
*best* one (one GPU alone), else the *observed* one (one user), else the *specification* (data sheet, dense). Of a link
it is what is installed.
`worker/src/gpuworker/judgement/limits.py` gives the reason for each share, `runtime/gpu_specs.yaml` the source of each
figure. `--limit KEY=NUMBER`, by a key of this table or the name of a measurement, overrides a limit. A limit above the
hardware maximum, or below 20 % of it, is refused, as is one that no node or every node meets (`mfu=1.5`).
A GPU model that is not listed is only compared with the others of the fleet, which is a WARN.

| key | unit | of | FAIL | WARN | why |
|---|---|---|---|---|---|
"""
MODELS = """
Figures, with the resulting limits (FAIL below / WARN below):
"""
FAULTS = """
## Fault injection

`accept-node --inject FAULT`, or `ddp-tests --inject FAULT` for checks across nodes, injects a fault where the check
measures, to prove that the check finds it. The verdict is then never PASS, and the report has a finding of this kind.
Tests run every row of this table.

| fault | found by | kind of the finding |
|---|---|---|
"""
KINDS = ("specification", "observed", "best", "sustained", "derived", "fixed")
GEMM = (
    "gemm_fp32",
    "gemm_tf32",
    "gemm_bf16",
    "gemm_fp16",
    "gemm_fp8",
    "memory_copy",
    "memory_triad",
)


def page() -> str:
    sys.path.insert(0, str(REPO / "worker/src"))
    from gpuworker.accept import fault_injection
    from gpuworker.judgement import check_spec, registry
    from gpuworker.judgement.limits import RULES
    from gpuworker.runtime import gpu_specs

    checks = registry.load()
    parts = [
        HEAD,
        "\n| check | proves | quick | full | burn-in | prolog |\n|---|---|---|---|---|---|\n",
    ]
    for name, check in registry.node_checks().items():
        times = (
            f"{check.seconds[level]:g} s" if level in check.seconds else ""
            for level in check_spec.LEVELS
        )
        parts.append(_row(f"[{name}](#{name})", check.proves, *times))
    parts.append(AFTER_CHECKS)
    for name, check in registry.world_checks().items():
        flag = f"`--{name.replace('_', '-')}{' DIR' * check.takes_volumes}`"
        parts.append(_row(f"[{name}](#{name})", flag, check.proves))
    for name, check in checks.items():
        parts += [f"\n## {name}\n\n{check.proves}.\n"]
        if check.measures:
            parts.append(
                "\n| number | unit | better | noise | what it is | limit |\n|---|---|---|---|---|---|\n"
            )
        for key, measure in check.measures.items():
            limit = f"`{measure.limit}`" if measure.limit else "-"
            noise = (
                "not compared"
                if math.isinf(measure.noise)
                else f"{measure.noise:g}"
                if measure.noise
                else "-"
            )
            parts.append(
                _row(f"`{key}`", measure.unit, measure.better, noise, measure.proves, limit)
            )
        if check.faults:
            parts.append(
                f"\nFinds, among others: {', '.join(f'`{fault}`' for fault in check.faults)}.\n"
            )
    parts.append(WATCHES)
    for name, text in RUNNER.items():
        parts.append(_row(f"`{name}`", text))
    parts += ["\n", LIMITS]
    texts = {}
    for key, rule in RULES.items():
        texts.setdefault(str(rule), []).append(key)
    for keys in texts.values():
        rule = RULES[keys[0]]
        kinds = [kind for kind in KINDS if kind in rule.shares]
        shares = (
            " / ".join(f"{rule.shares[kind][side] or '-'}" for kind in kinds) for side in (0, 1)
        )
        parts.append(
            _row(
                ", ".join(f"`{key}`" for key in keys),
                rule.unit,
                " / ".join(kinds),
                *shares,
                rule.source,
            )
        )
    parts += [
        MODELS,
        "\n",
        _row("model", *(f"`{key}`" for key in GEMM)),
        "|---" * (len(GEMM) + 1) + "|\n",
    ]
    parts += [
        _row(entry["model"], *(_figure(key, entry) for key in GEMM)) for entry in gpu_specs.MODELS
    ]
    parts.append(FAULTS)
    for fault in fault_injection.known_faults(checks):
        parts.append(_row(f"`{fault.id}`", fault.check or "the runner", f"`{fault.kind}`"))
    return "".join(parts)


def _figure(key: str, entry: dict) -> str:
    """`989 (620 / 657)`: the data sheet value, and the two limits."""
    from gpuworker.judgement.check_spec import Measure
    from gpuworker.judgement.limits import Limits

    if key not in entry:
        return ""
    threshold = Limits((entry["model"],)).threshold(key, Measure("", "", limit=key), "cuda:0")
    pair = (threshold.fail, threshold.warn)
    limits = " / ".join(
        "-" if limit is None else f"{limit:.{0 if limit >= 100 else 1}f}" for limit in pair
    )
    return f"{entry[key]['specification']:g} ({limits})"


def _row(*cells: str) -> str:
    return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in cells) + " |\n"
