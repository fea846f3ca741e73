"""Devices against their fleet, and against an earlier run.

An outlier is far from the median in two ways at once: by robust z (Iglewicz and Hoaglin, How to Detect and Handle
Outliers, 1993), so that a fleet with a wide spread is not flooded, and by a least percentage, so that a very tight one
does not flag noise: healthy GPUs of one model differ by 5 % or so. Among thousands of healthy GPUs some are far out by
chance, so the z asked for grows with their number. Fewer than SMALL devices have no spread to speak of: there the
percentages count alone, and doubled.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuworker.accept import registry
from gpuworker.accept.report import FAIL, INCOMPLETE, WARN
from gpuworker.fleet.fleet_report import Distribution, Finding, Point, natural

SMALL = 5
LEAST_Z = 3.5
FALSE_ALARMS = 0.001  # expected in a healthy fleet, for each measure
CONSISTENT = 0.6745  # MAD of normal values in standard deviations

Number = tuple[str, str, str, str]  # node, device, check, name


@dataclass(frozen=True)
class Thresholds:
    """Percent worse than the median of the fleet, and than an earlier run."""

    fleet_warn: float = 5
    fleet_fail: float = 10
    baseline_warn: float = 5
    baseline_fail: float = 10


DEFAULT = Thresholds()


def distributions(reports: Iterable[dict]) -> list[Distribution]:
    """The measures of all reports, grouped by what is comparable: measure, unit, GPU model and level."""
    directions = {
        (check.name, name): (measure.better, measure.limit is not None)
        for check in registry.load().values()
        for name, measure in check.spec.measures.items()
    }
    groups: dict[tuple[str, ...], list[tuple[dict, Point]]] = defaultdict(list)
    for report in reports:
        models = gpu_models(report)
        for check in report["checks"]:
            for m in check["measurements"]:
                if m["value"] is not None:
                    key = (check["name"], m["name"], m["unit"], model_of(m["device"], models), report["level"])
                    groups[key].append((m, Point(report["node"], m["device"], m["value"])))
    found = []
    for (check, name, unit, model, level), members in groups.items():
        better, matters = directions.get((check, name), ("", False))
        measurements, points = zip(*members, strict=True)
        points = sorted(points, key=lambda p: (natural(p.node), natural(p.device)))
        median = statistics.median(point.value for point in points)
        mad = statistics.median(abs(point.value - median) for point in points)
        limits = [{m.get(key) for m in measurements} for key in ("limit", "warn_limit", "limit_source")]
        limit, warn_limit, source = (values.pop() if len(values) == 1 else None for values in limits)
        judged = matters and model != "cpu"
        found.append(
            Distribution(
                check, name, unit, model, level, better, judged, points, median, mad, limit, warn_limit, source or ""
            )
        )
    return found


def gpu_models(report: dict) -> list[str]:
    """The node's GPU models by index; ["cpu"] in a rehearsal."""
    models = report["facts"].get("gpu_models")
    return (
        ["cpu"] if report["device"] == "cpu" else [str(model) for model in models] if isinstance(models, list) else []
    )


def model_of(device: str, models: list[str]) -> str:
    """The model that "cuda:3" is; of a whole node, or of a pair, the models that are there."""
    if device.startswith("cuda:") and device[5:].isdecimal() and int(device[5:]) < len(models):
        return models[int(device[5:])]
    return " + ".join(sorted(set(models))) or "unknown"


def outliers(distribution: Distribution, thresholds: Thresholds) -> list[Finding]:
    """Findings about the devices that are worse than their fleet; also writes their verdict into the points.

    A link is compared with the links of the same name on other nodes: within a node links may rightly differ.
    """
    d = distribution
    if not d.judged:
        return []
    peers: dict[str, list[int]] = defaultdict(list)
    for index, point in enumerate(d.points):
        peers[point.device if "→" in point.device else ""].append(index)
    return [finding for indices in peers.values() for finding in _outliers(d, indices, thresholds)]


def _outliers(d: Distribution, indices: list[int], thresholds: Thresholds) -> list[Finding]:
    """Those among the points with these indices."""
    values = [d.points[index].value for index in indices]
    median = statistics.median(values)
    if len(values) < 2 or not median:
        return []
    mad = statistics.median(abs(value - median) for value in values)
    small = len(values) < SMALL
    factor = 2 if small else 1
    least_z = max(LEAST_Z, statistics.NormalDist().inv_cdf(1 - FALSE_ALARMS / len(values)))
    findings = []
    for index in indices:
        point = d.points[index]
        lag = worse_by(point.value, median, d.better)
        z = CONSISTENT * abs(point.value - median) / mad if mad else float("inf")
        if lag <= factor * thresholds.fleet_warn or (not small and z <= least_z):
            continue
        verdict = FAIL if lag > factor * thresholds.fleet_fail else WARN
        spread = "too few for a spread" if small else f"robust z {z:.3g}"
        reason = (
            f"{d.name} {point.value:.4g} {d.unit} is {lag:.3g} % worse than the median {median:.4g} "
            f"of {len(values)} ({spread})"
        )
        d.points[index] = Point(point.node, point.device, point.value, verdict)
        findings.append(Finding(verdict, reason, point.node, point.device, d.check, "fleet"))
    return findings


def worse_by(value: float, reference: float, better: str) -> float:
    """How much worse than the reference, in percent of it; negative is better."""
    change = 100 * (value - reference) / abs(reference)
    return change if better == "lower" else -change


def numbers(distributions: Iterable[Distribution]) -> dict[Number, float]:
    return {(p.node, p.device, d.check, d.name): p.value for d in distributions for p in d.points}


def against_baseline(
    distributions: list[Distribution], baseline: Mapping[Number, float], thresholds: Thresholds
) -> tuple[list[Finding], str]:
    """Findings about devices that were better in the earlier run, and a sentence on how much could be compared."""
    findings, compared, total = [], 0, 0
    for d in (d for d in distributions if d.judged):
        for point in d.points:
            total += 1
            before = baseline.get((point.node, point.device, d.check, d.name))
            if not before:
                continue
            compared += 1
            lag = worse_by(point.value, before, d.better)
            if lag > thresholds.baseline_warn:
                verdict = FAIL if lag > thresholds.baseline_fail else WARN
                reason = f"{d.name} {point.value:.4g} {d.unit} is {lag:.3g} % worse than {before:.4g} in the baseline"
                findings.append(Finding(verdict, reason, point.node, point.device, d.check, "baseline"))
    note = f"baseline: {compared} of {total} judged numbers have a counterpart there"
    if not compared:
        reason = "nothing of the baseline fits: other nodes, devices or checks"
        if total == 0:
            reason = "nothing here is judged against a baseline; speeds of a CPU rehearsal never are"
        findings.append(Finding(INCOMPLETE, reason, found_by="baseline"))
    return findings, note
