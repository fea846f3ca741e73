"""The fleet report as Prometheus text (exposition format 0.0.4).

Prometheus stores every series of every scrape, so a large fleet has the spread of each measure and
its outliers only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from gpuworker.fleet.fleet_report import Distribution, Fleet, worst_verdict
from gpuworker.judgement.report import FAIL, INCOMPLETE, PASS, SKIP, WARN

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
VERDICTS = (PASS, WARN, FAIL, INCOMPLETE, SKIP)
MOST_VALUES = 5000  # with the verdicts of a thousand nodes, fewer than 20,000 series
Sample = tuple[dict[str, str], float]


def prometheus(fleet: Fleet) -> str:
    coverage = fleet.coverage
    lines: list[str] = []

    def gauge(name: str, meaning: str, samples: Iterable[Sample]) -> None:
        lines.extend([f"# HELP gpu_accept_{name} {meaning}", f"# TYPE gpu_accept_{name} gauge"])
        lines.extend(f"gpu_accept_{name}{_labels(labels)} {value!r}" for labels, value in samples)

    gauge(
        "fleet_verdict",
        "1 for the verdict of the fleet, 0 for the others.",
        _one_of(fleet.verdict, {}),
    )
    gauge("rehearsal", "1 if no GPU was tested.", [({}, int(fleet.rehearsal))])
    gauge("nodes_reported", "Nodes with a report.", [({}, coverage.nodes_reported)])
    if coverage.nodes_expected is not None:
        gauge("nodes_expected", "Nodes that must have a report.", [({}, coverage.nodes_expected)])
    gauge(
        "gpus_expected",
        "GPUs expected: of all nodes, if their number is set.",
        [({}, coverage.gpus_expected)],
    )
    gauge("gpus_seen", "GPUs seen on the nodes with a report.", [({}, coverage.gpus_seen)])
    gauge(
        "node_verdict",
        "1 for the verdict of a node, including the findings of the fleet.",
        (({"node": node.node, "verdict": node.verdict}, 1) for node in fleet.nodes),
    )
    gauge(
        "check_verdict",
        "1 for the verdict of a check of a node, including the findings of the fleet, if it is not PASS or SKIP.",
        (
            ({"node": node, "check": check, "verdict": worst_verdict(verdicts)}, 1)
            for (node, check), verdicts in _check_verdicts(fleet).items()
        ),
    )
    gauge(
        "world_check_verdict",
        "1 for the verdict of a cross-node check, 0 for the others.",
        (
            sample
            for world in fleet.worlds
            for check, verdict in world.checks.items()
            for sample in _one_of(
                verdict, {"world": world.name, "run": world.run_id, "check": check}
            )
        ),
    )
    for kind, of in (("median", lambda d: d.median), ("min", _least), ("max", _most)):
        meaning = f"The {kind} of all devices of a model, in the unit of the label."
        gauge(f"measurement_{kind}", meaning, ((_measure(d), of(d)) for d in fleet.distributions))
    every = sum(len(d.points) for d in fleet.distributions) <= MOST_VALUES
    values = (
        ({"node": p.node, "device": p.device, **_measure(d)}, p.value)
        for d in fleet.distributions
        for p in d.points
        if every or p.verdict != PASS
    )
    which = "" if every else " Outliers only; /metrics of a node's pod has all of its values."
    gauge(
        "measurement",
        f"Measured value in the unit of the label.{which}",
        itertools.islice(values, MOST_VALUES),
    )
    return "\n".join(lines) + "\n"


def _check_verdicts(fleet: Fleet) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    reported = [(node.node, *check) for node in fleet.nodes for check in node.checks.items()]
    for node, check, verdict in [
        *reported,
        *((f.node, f.check, f.verdict) for f in fleet.findings if f.node),
    ]:
        if check and verdict not in (PASS, SKIP):
            found.setdefault((node, check), set()).add(verdict)
    return found


def _measure(d: Distribution) -> dict[str, str]:
    return {
        "check": d.check,
        "measure": d.name,
        "unit": d.unit,
        "model": d.model,
        "level": d.level,
        "scope": d.scope,
    }


def _least(d: Distribution) -> float:
    return min(point.value for point in d.points)


def _most(d: Distribution) -> float:
    return max(point.value for point in d.points)


def _one_of(verdict: str, labels: dict[str, str]) -> list[Sample]:
    return [({**labels, "verdict": name}, int(name == verdict)) for name in VERDICTS]


def _labels(labels: dict[str, str]) -> str:
    return (
        "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"
        if labels
        else ""
    )


def _escape(value: str) -> str:
    """The format requires escapes for backslash, quote and line feed."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
