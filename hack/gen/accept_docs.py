"""The page docs/accept-checks.md, from the registry of checks and the table of limits."""

from __future__ import annotations

import re
import sys

from hack.paths import REPO

HEAD = """\
<!-- Generated from worker/src/gpuworker/accept by `make generate`. -->
# What the acceptance tests check

`accept-node` runs these checks on one node; each is one file in `worker/src/gpuworker/accept/checks/`, and this page
is made of them. The times are what a healthy node of 8 GPUs should take, not yet measured; on the CPU all of `quick`
takes seconds. A check that takes three times as long and half a minute (five minutes in a rehearsal) is ended.
The code paths for GPUs have not run on a GPU yet; rehearsals on the CPU and the proofs by injected faults have.

| verdict | when | exit code |
|---|---|---|
| PASS | every promised number is there and within its limits | 0 |
| WARN | a number is beyond its warning limit, or something is doubtful | 0 |
| FAIL | a fault is proven, or a number is beyond its limit | 1 |
| INCOMPLETE | a number, a check, a GPU or the report is missing; limits or clocks cannot be right | 3 |
| SKIP | the check cannot apply here, for example links between GPUs on a node with one; never the verdict of a node | |

The verdict of a node is the worst of its checks, FAIL before INCOMPLETE before WARN. Wrong usage ends with exit code 2.
"""
AFTER_CHECKS = """
The burn-in times are shares of `--burn-in-seconds` (3600). A number without a limit is shown, and judged
only if you give it one by its name.
"""
LIMITS = """\
## Limits

A limit is a share of a figure. Of a GPU model these are the *sustained* figure (what healthy GPUs keep up under a
loaded node), else the *best* (of one GPU alone), else the *specification* (of the data sheet, dense); of a link it is
what is installed. `worker/src/gpuworker/accept/limits.yaml` has the source of each number. `--limit KEY=NUMBER`, by a
key of this table or the name of a measurement, is a limit of your own and wins. One above what the hardware can do, or
below 20 % of it, is refused; `python3 -m gpuworker.accept.limits --model "NVIDIA H200" KEY=NUMBER` says so beforehand.
A GPU model that is not here is judged only against the others of the fleet, and the report says so.

| key | unit | of | FAIL | WARN | why |
|---|---|---|---|---|---|
"""
MODELS = """
Figures, with the limits that follow (FAIL below / WARN below):
"""
FAULTS = """
## Faults that can be put in

`accept-node --inject FAULT` makes one happen where the check measures, so that anybody can see that it is found. The
verdict is then never PASS, and its reason matches the pattern. Tests run every line of this table.

| fault | found by | reason matches |
|---|---|---|
"""
KINDS = ("specification", "best", "sustained", "derived", "fixed")
GEMM = ("gemm_fp32", "gemm_tf32", "gemm_bf16", "gemm_fp16", "gemm_fp8", "memory_copy", "memory_triad")


def page() -> str:
    sys.path.insert(0, str(REPO / "worker/src"))
    from gpuworker.accept import fault_injection, registry
    from gpuworker.accept.limits import RULES
    from gpuworker.runtime import gpu_specs

    checks = registry.load()
    parts = [HEAD, "\n| check | proves | quick | full | burn-in |\n|---|---|---|---|---|\n"]
    for name, check in checks.items():
        times = (f"{check.spec.seconds[level]:g} s" if level in check.spec.seconds else "" for level in registry.LEVELS)
        parts.append(_row(f"[{name}](#{name})", check.proves, *times))
    parts.append(AFTER_CHECKS)
    for name, check in checks.items():
        parts += [f"\n## {name}\n\n{check.proves}.\n"]
        if check.spec.measures:
            parts.append("\n| number | unit | better | what it is | limit |\n|---|---|---|---|---|\n")
        for key, measure in check.spec.measures.items():
            limit = f"`{measure.limit}`" if measure.limit else "-"
            parts.append(_row(f"`{key}`", measure.unit, measure.better, measure.proves, limit))
        if check.spec.faults:
            parts.append(f"\nFinds, among others: {', '.join(f'`{fault}`' for fault in check.spec.faults)}.\n")
    parts += ["\n", LIMITS]
    texts = {}
    for key, rule in RULES.items():
        texts.setdefault(str(rule), []).append(key)
    for keys in texts.values():
        rule = RULES[keys[0]]
        kinds = [kind for kind in KINDS if kind in rule]
        shares = (" / ".join(f"{rule[kind].get(side, '-')}" for kind in kinds) for side in ("fail", "warn"))
        parts.append(
            _row(", ".join(f"`{key}`" for key in keys), rule["unit"], " / ".join(kinds), *shares, rule["source"])
        )
    parts += [MODELS, "\n", _row("model", *(f"`{key}`" for key in GEMM)), "|---" * (len(GEMM) + 1) + "|\n"]
    parts += [_row(entry["model"], *(_figure(key, entry) for key in GEMM)) for entry in gpu_specs.MODELS]
    parts.append(FAULTS)
    for fault in fault_injection.known(checks):
        parts.append(_row(f"`{fault.id}`", fault.check or "the runner", f"`{fault.reason}`"))
    return "".join(parts)


def _figure(key: str, entry: dict) -> str:
    """`989 (620 / 657)`: what the data sheet says, and the two limits."""
    from gpuworker.accept.limits import Limits
    from gpuworker.accept.registry import Measure

    if key not in entry:
        return ""
    threshold = Limits((entry["model"],)).threshold(key, Measure("", "", limit=key), "cuda:0")
    pair = (threshold.fail, threshold.warn)
    limits = " / ".join("-" if limit is None else f"{limit:.{0 if limit >= 100 else 1}f}" for limit in pair)
    return f"{entry[key]['specification']:g} ({limits})"


def _row(*cells: str) -> str:
    return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in cells) + " |\n"
