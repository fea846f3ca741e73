"""Reports of made-up nodes, small enough to check by hand, in the form that accept-node writes."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from pathlib import Path

from gpuworker.accept import check_spec, registry
from gpuworker.accept.check_spec import Evidence, Plan, Spec
from gpuworker.accept.environment_problems import NOT_READABLE
from gpuworker.accept.limits import Limits
from gpuworker.accept.rejudge import Requested
from gpuworker.accept.report import FAIL, INCOMPLETE, NODE, PASS, SCHEMA_VERSION, WARN, WORLD, Measurement, to_json
from gpuworker.accept.verdict import judge
from gpuworker.fleet.expected import Expected
from gpuworker.fleet.fleet_report import Fleet
from gpuworker.fleet.merge import merge
from gpuworker.fleet.report_form import validated
from gpuworker.fleet.report_sources import Source
from gpuworker.runtime.gpu_inventory import Gpu

REPO = Path(__file__).resolve().parents[2]
H100 = "NVIDIA H100 80GB HBM3"
GROUP = "H100, driver 570.86, torch 2.9"


def check(name: str, verdict: str = PASS, reason: str = "", **parts: object) -> dict:
    """A check; parts are measurements, facts, hashes."""
    empty = {"problems": [], "measurements": [], "facts": {}, "hashes": {}, "samples": {}, "duration_s": 1.0}
    return {"name": name, "verdict": verdict, "reason": reason, **empty, **parts}


def measurement(
    value: float | None,
    device: str,
    name: str = "gemm",
    unit: str = "TFLOP/s",
    better: str = "higher",
    judged: bool = True,
) -> dict:
    """A measurement without a limit, whose outliers are findings."""
    limits = {"limit": None, "warn_limit": None, "limit_source": "none", "margin": None, "ceiling": None}
    return {"name": name, "value": value, "unit": unit, "device": device, **limits, "better": better, "judged": judged}


def node_report(node: str, speeds: tuple[float, ...] = (100.0, 100.0), **changes: object) -> dict:
    """A node with one GPU for each speed that passed everything; changes replace parts of the report."""
    devices = [f"cuda:{index}" for index in range(len(speeds))]
    checks = [
        check("environment"),
        check("compute", measurements=[measurement(*pair) for pair in zip(speeds, devices, strict=True)]),
        check("repeatability", hashes={f"gemm {d}": "aa" for d in devices}, facts={"hash_group": GROUP}),
    ]
    report = {
        "schema_version": SCHEMA_VERSION,
        "scope": NODE,
        "world": None,
        "node": node,
        "pod": f"accept-{node}",
        "run_id": "1",
        "device": "cuda",
        "level": "quick",
        "started": "2026-01-05T10:00:00+00:00",
        "duration_s": 50.0,
        "injected": "",
        "facts": {"gpu_models": [H100] * len(speeds), "driver": "570.86", "torch": "2.9"},
        "rehearsal": False,
        "coverage": {
            "checks_expected": len(checks),
            "checks_reported": len(checks),
            "gpus_expected": len(speeds),
            "gpus_seen": len(speeds),
            "left_out": [],
        },
        "verdict": PASS,
        "reason": "",
        "checks": checks,
    }
    return {**report, **changes}


def failing(node: str, reason: str = "cuda:1: 2 products are wrong") -> dict:
    report = node_report(node, verdict=FAIL, reason=f"compute: {reason}")
    report["checks"][1] |= {"verdict": FAIL, "reason": reason}
    return report


REQUESTED = Requested("cuda", 2, "quick")
LINKS = {"host_link": (63.0, "PCIe 5.0 x16"), "peer_link": (450.0, "NVLink"), "busbw_node": (450.0, "NVLink")}


def complete_report(node: str, requested: Requested = REQUESTED, **changes: object) -> dict:
    """A report of every check of the level with every number that it promises, judged as accept-node does it."""
    report = node_report(node, (1.0,) * requested.gpus, level=requested.level, device=requested.device)
    plan, limits = Plan(requested.device, requested.gpus, requested.level), Limits((H100,) * requested.gpus)
    report["checks"] = [
        dataclasses.asdict(
            judge(name, registered.spec, _evidence(name, registered.spec, plan, limits, node), limits, plan)
        )
        | {"duration_s": 1.0}
        for name, registered in registry.node_checks().items()
        if not requested.checks or name in requested.checks
    ]
    report["coverage"] |= dict.fromkeys(("checks_expected", "checks_reported"), len(report["checks"]))
    return {**json.loads(to_json(report, None)), **changes}


def _evidence(name: str, spec: Spec, plan: Plan, limits: Limits, node: str) -> Evidence:
    found = Evidence(
        facts=_facts(plan, node).get(name, {"hash_group": GROUP} if spec.fingerprints else {"number": 1})
        | ({"ranks": plan.gpus} if spec.process == check_spec.WORLD else {}),
        hashes={f"{n} {d}": hashlib.sha256(n.encode()).hexdigest() for n in spec.fingerprints for d in plan.devices},
    )
    for name, measure in spec.measures.items():
        if measure.limit in LINKS:
            found.ceilings[name] = LINKS[measure.limit]
        pairs = [f"{a}→{b}" for a in plan.devices for b in plan.devices if a != b]
        for device in {"device": plan.devices, "pair": pairs, "node": [""]}[measure.each]:
            threshold = limits.threshold(name, measure, device, found.ceilings.get(name))
            least = threshold.warn or threshold.fail or min(100.0, 0.9 * measure.most)
            value = 1.02 * least if measure.better == "higher" else measure.least
            found.measurements.append(Measurement(name, value, measure.unit, device))
    return found


def _facts(plan: Plan, node: str) -> dict[str, dict]:
    """Of checks whose problems are found in their facts."""
    gpus = [
        Gpu(
            device, f"GPU-{node}-{device}", H100, f"0000:{index}b:00.0", ecc=True, ecc_uncorrected=0,
            remap_failed=False, pages_pending=False, clock_reasons=1, temperature_c=30, pcie_replays=0,
        )
        for index, device in enumerate(plan.devices)
    ]  # fmt: skip
    return {
        "environment": {
            "cuda_error": "", "gpus_expected": plan.gpus, "gpus_seen": plan.gpus, "pci_gpus": [], "ports": [],
            "gpus": [dataclasses.asdict(gpu) for gpu in gpus], "nearest_adapters": {}, "gpu_direct": "",
            "mps_share": "", "shm_bytes": 64 << 30, "clock_synchronised": True, "xids": NOT_READABLE,
        },
        "memory": {"memory_gib": dict.fromkeys(plan.devices, 120.0)},
        "compute": {"telemetry": {device: {"readings": 40} for device in plan.devices}},
        "links": {
            "links": {
                device: {
                    "name": H100, "pcie_gen_under_load": 5, "pcie_gen_max": 5, "pcie_width_under_load": 16,
                    "pcie_width_max": 16, "nvlinks_up": 18, "nvlinks_down": 0,
                }
                for device in plan.devices
            }
        },
        "stragglers": {"ranks": 2, "compute_s": 0.2, "on_time_s": 0.0},
    }  # fmt: skip


def world_check(name: str, *problems: dict, ranks: int = 4, **numbers: float) -> dict:
    """A check across the nodes of a world with GPUs with its numbers, of which some may be others."""
    measures = registry.world_checks()[name].spec.measures
    values = {
        each: measure.least or (0.0 if measure.better == "lower" else 400.0) for each, measure in measures.items()
    }
    found = [
        measurement(value, "", each, measures[each].unit, measures[each].better)
        for each, value in (values | numbers).items()
    ]
    verdict = next((v for v in (FAIL, INCOMPLETE, WARN) if v in {each["verdict"] for each in problems}), PASS)
    reason = "; ".join(each["reason"] for each in problems)
    facts = {"stragglers": {"compute_s": 0.003, "on_time_s": 0.0}}.get(name, {}) | {"ranks": ranks}
    return check(name, verdict, reason, problems=list(problems), measurements=found, facts=facts)


def world_report(nodes: dict[str, list[int]], *checks: dict, **changes: object) -> dict:
    """A report of cross-node checks whose verdict is the worst of theirs."""
    verdicts = {check["verdict"] for check in checks}
    reason = "; ".join(check["reason"] for check in checks if check["reason"])
    size = sum(map(len, nodes.values()))
    report = node_report(min(nodes), (1.0,) * size)
    report |= {
        "scope": WORLD,
        "world": {
            "size": size,
            "nodes": [{"node": node, "ranks": ranks} for node, ranks in nodes.items()],
        },
        "run_id": "ddp-1",
        "verdict": next(verdict for verdict in (FAIL, INCOMPLETE, WARN, PASS) if verdict in verdicts),
        "reason": reason,
        "checks": list(checks),
    }
    report["coverage"] |= {"checks_expected": len(checks), "checks_reported": len(checks)}
    return {**report, **changes}


def merged(*reports: dict, expected: Expected | None = None, **options: object) -> Fleet:
    """The reports as they come out of their JSON."""
    sources = [Source(report["node"], validated(json.loads(json.dumps(report)))) for report in reports]
    return merge(sources, expected or Expected(len(reports) or None), **options)


def changed(report: dict, path: str, value: object) -> dict:
    """The report in which `a/0/b` is another value, or gone if the value is ...: what a damaged file holds.

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
