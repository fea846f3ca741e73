"""Reports of made-up nodes: whole ones as accept-node writes them, and judged ones small enough to
check by hand.
"""

import copy
import dataclasses
import hashlib
import json
import zlib
from pathlib import Path

from gpuworker.accept.environment_problems import NOT_READABLE
from gpuworker.judgement import registry
from gpuworker.judgement.check_spec import Plan, Spec
from gpuworker.judgement.fleet_report import Fleet
from gpuworker.judgement.judge import Judged
from gpuworker.judgement.limits import Limits
from gpuworker.judgement.merge import merge
from gpuworker.judgement.reading import report_of
from gpuworker.judgement.report import (
    FAIL,
    INCOMPLETE,
    NODE,
    PASS,
    SCHEMA_VERSION,
    WARN,
    WORLD,
    Evidence,
    Measurement,
    Problem,
    Requested,
    to_json,
)
from gpuworker.judgement.sources import Expected, Source
from gpuworker.judgement.verdict import Check, Number
from gpuworker.runtime.gpu_inventory import Gpu

REPO = Path(__file__).resolve().parents[2]
H100 = "NVIDIA H100 80GB HBM3"
GROUP = "H100, driver 570.86, torch 2.9"


def check(name: str, verdict: str = PASS, reason: str = "", **parts: object) -> dict:
    """A check; parts are measurements, facts, hashes. Only `judged_of` reads the verdict and the
    reason.
    """
    empty = dataclasses.asdict(Evidence(name=name, duration_s=1.0))
    return {**empty, "verdict": verdict, "reason": reason, **parts}


def measurement(
    value: float | None,
    device: str,
    name: str = "gemm",
    unit: str = "TFLOP/s",
    better: str = "higher",
    judged: bool = True,
) -> dict:
    """A measurement without a limit, whose outliers are findings. Only `judged_of` reads the last
    two.
    """
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "device": device,
        "better": better,
        "judged": judged,
    }


def group_of(devices: list[str]) -> dict:
    """The fact that says which fingerprints must be equal."""
    return {"hash_group": dict.fromkeys(devices, GROUP)}


def node_report(node: str, speeds: tuple[float, ...] = (100.0, 100.0), **changes: object) -> dict:
    """A judged node with one GPU for each speed that passed everything; changes replace parts of
    the report.
    """
    devices = [f"cuda:{index}" for index in range(len(speeds))]
    checks = [
        check("environment"),
        check(
            "compute",
            measurements=[measurement(*pair) for pair in zip(speeds, devices, strict=True)],
        ),
        check(
            "repeatability", hashes={f"gemm {d}": "aa" for d in devices}, facts=group_of(devices)
        ),
    ]
    report = {
        "schema_version": SCHEMA_VERSION,
        "scope": NODE,
        "world": None,
        "node": node,
        "pod": f"accept-{node}",
        "run_id": "1",
        "requested": dataclasses.asdict(Requested("cuda", len(speeds), "quick")),
        "started": "2026-01-05T10:00:00+00:00",
        "duration_s": 50.0,
        "facts": {"gpu_models": [H100] * len(speeds), "driver": "570.86", "torch": "2.9"},
        "checks": checks,
        "judged": True,
    }
    return with_changes(report, changes)


def with_changes(report: dict, changes: dict[str, object]) -> dict:
    """The report with other fields, also of what was requested."""
    asked = {name: changes.pop(name) for name in ("device", "level", "inject") if name in changes}
    return {**report, "requested": report["requested"] | asked, **changes}


def judged_of(report: dict) -> Judged:
    """The report with the verdicts that its checks name."""
    fields = {field.name for field in dataclasses.fields(Number)}
    checks = []
    for each in report["checks"]:
        numbers = [
            Number(**{k: v for k, v in m.items() if k in fields}) for m in each["measurements"]
        ]
        for number in numbers:
            number.value = float("nan") if number.value is None else number.value
        problems = [Problem(**found) for found in each["problems"]]
        checks.append(Check(each["name"], each["verdict"], each["reason"], numbers, problems))
    return Judged(report_of(report), checks)


def problem(verdict: str, kind: str, reason: str, *parts: str, **numbers: object) -> dict:
    return dataclasses.asdict(Problem(verdict, kind, reason, list(parts), numbers))


def with_problems(report: dict, name: str, *problems: dict) -> dict:
    """The report with these problems of a check."""
    found = next(check for check in report["checks"] if check["name"] == name)
    worst = next(v for v in (FAIL, INCOMPLETE, WARN) if v in {each["verdict"] for each in problems})
    found["problems"] = list(problems)
    if "judged" in report:
        found |= {"verdict": worst, "reason": "; ".join(each["reason"] for each in problems)}
    return report


def failing(
    node: str, reason: str = "cuda:1: 2 products are wrong", kind: str = "wrong-product"
) -> dict:
    part = reason.partition(": ")[0]
    parts = [part] if part.startswith("cuda:") else []
    return with_problems(node_report(node), "compute", problem(FAIL, kind, reason, *parts))


def broken_report(node: str) -> dict:
    """A whole report of a node with one broken GPU."""
    wrong = problem(FAIL, "wrong-product", "cuda:1: 2 products are wrong", "cuda:1")
    return with_problems(complete_report(node), "compute", wrong)


REQUESTED = Requested("cuda", 2, "quick")
LINKS = {
    "host_link": (63.0, "PCIe 5.0 x16"),
    "peer_link": (450.0, "NVLink"),
    "busbw_node": (450.0, "NVLink"),
}


def complete_report(node: str, requested: Requested = REQUESTED, **changes: object) -> dict:
    """A report of every check of the level with every number that it promises, as accept-node
    writes it.
    """
    report = node_report(node, (1.0,) * requested.gpus, requested=dataclasses.asdict(requested))
    del report["judged"]
    plan, limits = (
        Plan(requested.device, requested.gpus, requested.level),
        Limits((H100,) * requested.gpus),
    )
    report["checks"] = [
        dataclasses.asdict(_evidence(name, registered, plan, limits, node))
        for name, registered in registry.node_checks().items()
        if requested.level in registered.seconds
        and (not requested.checks or name in requested.checks)
    ]
    return with_changes(json.loads(to_json(report, None)), changes)


def _evidence(name: str, spec: Spec, plan: Plan, limits: Limits, node: str) -> Evidence:
    found = Evidence(
        facts=_facts(plan, node).get(
            name, group_of(plan.devices) if spec.fingerprints else {"number": 1}
        )
        | ({"ranks": plan.gpus} if spec.ranks else {}),
        hashes={
            f"{n} {d}": hashlib.sha256(n.encode()).hexdigest()
            for n in spec.fingerprints
            for d in plan.devices
        },
        name=name,
        duration_s=1.0,
    )
    for name, measure in spec.measures.items():
        if measure.limit in LINKS:
            found.ceilings[name] = LINKS[measure.limit]
        pairs = [f"{a}→{b}" for a in plan.devices for b in plan.devices if a != b]
        for device in {"device": plan.devices, "pair": pairs, "node": [""]}[measure.each]:
            threshold = limits.threshold(name, measure, device, found.ceilings.get(name))
            least = threshold.warn or threshold.fail or min(100.0, 0.9 * measure.most)
            value = 1.02 * least if measure.better == "higher" else measure.least
            value *= 1 + zlib.crc32(f"{node}{device}".encode()) / 2**44  # no two are equal
            found.measurements.append(Measurement(name, value, measure.unit, device))
    return found


def _facts(plan: Plan, node: str) -> dict[str, dict]:
    """Of checks whose problems are found in their facts."""

    def kept(*names: str) -> dict:
        return {name: dict.fromkeys(plan.devices, 1.0) for name in names}

    gpus = [
        Gpu(
            device, f"GPU-{node}-{device}", H100, f"0000:{index}b:00.0", ecc=True, ecc_uncorrected=0,
            remap_failed=False, pages_pending=False, clock_reasons=1, temperature_c=30, pcie_replays=0,
        )
        for index, device in enumerate(plan.devices)
    ]  # fmt: skip
    return {
        "environment": {
            "cuda_error": "", "cuda_error_kind": "", "gpus_expected": plan.gpus, "gpus_seen": plan.gpus,
            "pci_gpus": [], "ports": [],
            "gpus": [dataclasses.asdict(gpu) for gpu in gpus], "nearest_adapters": {},
            "mps_share": "", "shm_bytes": 64 << 30, "clock_synchronised": True, "xids": NOT_READABLE,
        },
        "host": {"compared": {name: {"numa0": 1.0} for name in ("host_memory", "host_compute")}},
        "memory": {
            "kept": kept("memory_copy", "memory_triad"), "memory_gib": dict.fromkeys(plan.devices, 120.0),
            "models": dict.fromkeys(plan.devices, H100),
        },
        "compute": {
            "kept": kept(*registry.node_checks()["compute"].measures),
            "telemetry": {device: {"readings": 40} for device in plan.devices},
        },
        "links": {
            "links": {
                device: {
                    "name": H100, "pcie_gen_under_load": 5, "pcie_gen_max": 5, "pcie_width_under_load": 16,
                    "pcie_width_max": 16, "nvlinks_up": 18, "nvlinks_down": 0,
                }
                for device in plan.devices
            }
        },
    }  # fmt: skip


def world_check(name: str, *problems: dict, ranks: int = 4, **numbers: float) -> dict:
    """A check across the nodes of a world with GPUs with its numbers, of which some may be others."""
    measures = registry.world_checks()[name].measures
    values = {
        each: measure.least or (0.0 if measure.better == "lower" else 400.0)
        for each, measure in measures.items()
    }
    found = [
        measurement(value, "", each, measures[each].unit, measures[each].better)
        for each, value in (values | numbers).items()
    ]
    verdict = next(
        (v for v in (FAIL, INCOMPLETE, WARN) if v in {each["verdict"] for each in problems}), PASS
    )
    reason = "; ".join(each["reason"] for each in problems)
    return check(
        name, verdict, reason, problems=list(problems), measurements=found, facts={"ranks": ranks}
    )


def world_report(nodes: dict[str, list[int]], *checks: dict, **changes: object) -> dict:
    """A report of cross-node checks."""
    size = sum(map(len, nodes.values()))
    report = node_report(min(nodes), (1.0,) * size)
    del report["judged"]
    asked = Requested("cuda", size, "quick", tuple(check["name"] for check in checks))
    report |= {
        "scope": WORLD,
        "world": {
            "size": size,
            "nodes": [{"node": node, "ranks": ranks} for node, ranks in nodes.items()],
        },
        "run_id": "ddp-1",
        "requested": dataclasses.asdict(asked),
        "checks": list(checks),
    }
    return with_changes(report, changes)


def source(report: dict) -> Source:
    """The report as it comes out of its JSON."""
    found = json.loads(json.dumps(report))
    if found.get("judged"):
        judged = judged_of(found)
        return Source(report["node"], judged.report, judged=judged)
    return Source(report["node"], report_of(found))


def merged(*reports: dict, expected: Expected | None = None, **options: object) -> Fleet:
    return merge(
        [source(each) for each in reports], expected or Expected(len(reports) or None), **options
    )


def changed(report: dict, path: str, value: object) -> dict:
    """The report in which `a/0/b` is another value, or gone if the value is ...: what a damaged
    file holds.

    Only what is on the path is copied.
    """
    *steps, last = (int(step) if step.isdecimal() else step for step in path.split("/"))
    part = whole = copy.copy(report)
    for step in steps:
        part[step] = copy.copy(part[step])
        part = part[step]
    if value is ...:
        del part[last]
    else:
        part[last] = value
    return whole
