"""The fleet report as Prometheus text (exposition format 0.0.4)."""

from __future__ import annotations

from collections.abc import Iterable

from gpuworker.accept.report import FAIL, INCOMPLETE, PASS, SKIP, WARN
from gpuworker.fleet.fleet_report import Fleet

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
VERDICTS = (PASS, WARN, FAIL, INCOMPLETE, SKIP)
Sample = tuple[dict[str, str], float]


def prometheus(fleet: Fleet) -> str:
    coverage = fleet.coverage
    lines: list[str] = []

    def gauge(name: str, meaning: str, samples: Iterable[Sample]) -> None:
        lines.extend([f"# HELP gpu_accept_{name} {meaning}", f"# TYPE gpu_accept_{name} gauge"])
        lines.extend(f"gpu_accept_{name}{_labels(labels)} {value!r}" for labels, value in samples)

    gauge("fleet_verdict", "1 for the verdict of the fleet, 0 for the others.", _one_of(fleet.verdict, {}))
    gauge("rehearsal", "1 if no GPU was tested.", [({}, int(fleet.rehearsal))])
    gauge("nodes_reported", "Nodes with a report.", [({}, coverage.nodes_reported)])
    if coverage.nodes_expected is not None:
        gauge("nodes_expected", "Nodes that must have a report.", [({}, coverage.nodes_expected)])
    gauge("gpus_expected", "GPUs expected on the nodes with a report.", [({}, coverage.gpus_expected)])
    gauge("gpus_seen", "GPUs seen on the nodes with a report.", [({}, coverage.gpus_seen)])
    gauge(
        "node_verdict",
        "1 for the verdict of a node, including the findings of the fleet, 0 for the others.",
        (sample for node in fleet.nodes for sample in _one_of(node.verdict, {"node": node.node})),
    )
    gauge(
        "check_verdict",
        "1 for the verdict of a check in the report of its node, 0 for the others.",
        (
            sample
            for node in fleet.nodes
            for check, verdict in node.checks.items()
            for sample in _one_of(verdict, {"node": node.node, "check": check})
        ),
    )
    gauge(
        "world_check_verdict",
        "1 for the verdict of a cross-node check, 0 for the others.",
        (
            sample
            for world in fleet.worlds
            for check, verdict in world.checks.items()
            for sample in _one_of(verdict, {"world": world.name, "run": world.run_id, "check": check})
        ),
    )
    gauge(
        "measurement",
        "Measured value in the unit of the label.",
        (
            ({"node": p.node, "device": p.device, "check": d.check, "measure": d.name, "unit": d.unit}, p.value)
            for d in fleet.distributions
            for p in d.points
        ),
    )
    return "\n".join(lines) + "\n"


def _one_of(verdict: str, labels: dict[str, str]) -> list[Sample]:
    return [({**labels, "verdict": name}, int(name == verdict)) for name in VERDICTS]


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}" if labels else ""


def _escape(value: str) -> str:
    """The format requires escapes for backslash, quote and line feed."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
