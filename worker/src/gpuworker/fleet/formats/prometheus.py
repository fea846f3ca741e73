"""The verdicts of a fleet as Prometheus text (exposition format 0.0.4), for alerts: what was
measured is on the page."""

from __future__ import annotations

from gpuworker.judgement.fleet_report import WORST_FIRST, Fleet

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def prometheus(fleet: Fleet) -> str:
    coverage, lines = fleet.coverage, []

    def gauge(name: str, meaning: str, *samples: tuple[dict[str, str], int]) -> None:
        lines.extend([f"# HELP gpu_accept_{name} {meaning}", f"# TYPE gpu_accept_{name} gauge"])
        lines.extend(f"gpu_accept_{name}{_labels(labels)} {value}" for labels, value in samples)

    verdicts = [({"verdict": each}, int(each == fleet.verdict)) for each in WORST_FIRST]
    gauge("fleet_verdict", "1 for the verdict of the fleet, 0 for the others.", *verdicts)
    gauge("rehearsal", "1 if no GPU was tested.", ({}, int(fleet.rehearsal)))
    gauge("nodes_reported", "Nodes with a report.", ({}, coverage.nodes_reported))
    if coverage.nodes_expected is not None:
        gauge("nodes_expected", "Nodes that must have a report.", ({}, coverage.nodes_expected))
    gauge("gpus_expected", "GPUs of all expected nodes.", ({}, coverage.gpus_expected))
    gauge("gpus_seen", "GPUs seen on the nodes with a report.", ({}, coverage.gpus_seen))
    nodes = [({"node": each.node, "verdict": each.verdict}, 1) for each in fleet.nodes]
    gauge("node_verdict", "1 for the verdict of a node.", *nodes)
    return "\n".join(lines) + "\n"


def _labels(labels: dict[str, str]) -> str:
    text = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())
    return f"{{{text}}}" * bool(text)


def _escape(value: str) -> str:
    """The format requires escapes for backslash, quote and line feed."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
