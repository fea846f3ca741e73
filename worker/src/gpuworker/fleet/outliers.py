"""Outliers: devices that are worse than the rest of the fleet, or worse than in an earlier run.

An outlier is far from the median in two ways: by robust z (Iglewicz and Hoaglin, How to Detect and Handle Outliers,
1993), so that a fleet with a wide spread does not produce many findings, and by a minimum percentage, so that a very
tight fleet does not turn noise into findings (healthy GPUs of one model differ by about 5 %). Numbers without a limit,
such as disks and latencies, spread more: their percentages are WITHOUT_LIMIT times as large. Among thousands of healthy
GPUs some are far from the median by chance, so the required z grows with their number. Fewer than SMALL devices have no
meaningful spread: only the percentages count, doubled.

Nothing within the noise of a number is an outlier, as its Measure declares it: twice the median of 0.01 ms is not late.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gpuworker.accept import rejudge
from gpuworker.accept.report import FAIL, INCOMPLETE, NODE, WARN
from gpuworker.fleet.check_findings import world_name
from gpuworker.fleet.compact import numbers
from gpuworker.fleet.fleet_report import Distribution, Finding, Point, natural_sort_key

SMALL = 5
LEAST_Z = 3.5
FALSE_ALARMS = 0.001  # expected per measure in a healthy fleet
WITHOUT_LIMIT = (4, 7.5)  # times the percentages for WARN and FAIL
MAD_PER_SIGMA = 0.6745  # MAD of normally distributed values, in standard deviations

ValueKey = tuple[str, str, str, str]  # node, device, check, name


class Known(NamedTuple):
    """A value of an earlier run."""

    value: float
    unit: str
    model: str
    level: str
    doubt: str = ""  # why no number of this node is a measure for later ones

    def differs(self, unit: str, model: str) -> str:
        """Why it is not compared with a later value in this unit of this model; "" if it is."""
        pairs = (self.unit, unit), (self.model, model)
        return next((f"{was} before, {now} after" for was, now in pairs if was != now), "")

    def impossible(self, check: str, name: str, better: str, when: str = "before") -> str:
        """Why it is compared with no other value: every later one is better than a number below zero."""
        problem = rejudge.impossible_number(check, name, self.value, self.unit, better)
        return problem and f"{when}, it {problem}"


@dataclass(frozen=True)
class Thresholds:
    """How much worse than the fleet's median, or than an earlier run, is a WARN or a FAIL, in percent."""

    fleet_warn: float = 5
    fleet_fail: float = 10
    baseline_warn: float = 5
    baseline_fail: float = 10


DEFAULT = Thresholds()


def distributions(reports: Iterable[dict]) -> list[Distribution]:
    """The values of all reports in comparable groups: same check, measure, unit, direction, model, level and scope.

    Worlds have different sizes and fabrics, so their values are shown and not compared.
    """
    groups: dict[tuple, list[Point]] = defaultdict(list)
    limits: dict[tuple, set[tuple]] = defaultdict(set)  # (limit, warn_limit, limit_source)
    for report in reports:
        models, scope = gpu_models(report), report["scope"]
        model_for = functools.cache(functools.partial(model_of, models=models))
        name = report["node"] if scope == NODE else world_name(report)
        for check in report["checks"]:
            for m in numbers(check):
                if m.value is not None:
                    model = model_for(m.device)
                    judged = m.judged and m.better != "" and model != "cpu" and scope == NODE
                    key = (check["name"], m.name, m.unit, model, report["level"], scope, m.better, judged)
                    groups[key].append(Point(name, m.device, m.value))
                    limits[key].add((m.limit, m.warn_limit, m.limit_source))
    found = []
    for key, points in groups.items():
        points.sort(key=lambda p: (natural_sort_key(p.node), natural_sort_key(p.device)))
        median = statistics.median(point.value for point in points)
        mad = statistics.median(abs(point.value - median) for point in points)
        fields = (set(values) for values in zip(*limits[key], strict=True))
        limit, warn_limit, source = (values.pop() if len(values) == 1 else None for values in fields)
        found.append(Distribution(*key, points, median, mad, limit, warn_limit, source or ""))
    return found


def gpu_models(report: dict) -> list[str]:
    """The node's GPU models by index; ["cpu"] in a rehearsal."""
    if report["device"] == "cpu":
        return ["cpu"]
    models = report["facts"].get("gpu_models")
    return [str(model) for model in models] if isinstance(models, list) else []


def model_of(device: str, models: list[str]) -> str:
    """The model of a device such as "cuda:3"; for a whole node or a pair, all models of the node."""
    if device.startswith("cuda:") and device[5:].isdecimal() and int(device[5:]) < len(models):
        return models[int(device[5:])]
    return " + ".join(sorted(set(models))) or "unknown"


def find_outliers(distribution: Distribution, thresholds: Thresholds) -> list[Finding]:
    """Findings about devices that are worse than the fleet. Sets the verdicts of the distribution's points.

    A link is compared with the link of the same name on other nodes: links within one node may differ by design.
    """
    if not distribution.better or distribution.model == "cpu" or distribution.scope != NODE:
        return []
    groups: dict[str, list[int]] = defaultdict(list)
    for index, point in enumerate(distribution.points):
        groups[point.device if "→" in point.device else ""].append(index)
    return [finding for indices in groups.values() for finding in _outliers(distribution, indices, thresholds)]


def _outliers(d: Distribution, indices: list[int], thresholds: Thresholds) -> list[Finding]:
    """Outliers among the points with these indices."""
    values = [d.points[index].value for index in indices]
    median = statistics.median(values)
    noise = rejudge.noises().get((d.check, d.name), 0.0)
    usual = max(median, noise) if d.better == "lower" else median
    if len(values) < 2 or not usual or math.isinf(noise):
        return []
    mad = statistics.median(abs(value - median) for value in values)
    small = len(values) < SMALL
    factors = [(1 + small) * times for times in ((1, 1) if d.judged else WITHOUT_LIMIT)]
    least_z = max(LEAST_Z, statistics.NormalDist().inv_cdf(1 - FALSE_ALARMS / len(values)))
    findings = []
    for index in indices:
        point = d.points[index]
        worse = _loss(d, point.value, usual)
        z = MAD_PER_SIGMA * abs(point.value - median) / mad if mad else float("inf")
        if worse <= factors[0] * thresholds.fleet_warn or (not small and z <= least_z):
            continue
        if abs(point.value - median) <= noise:
            continue
        verdict = FAIL if worse > factors[1] * thresholds.fleet_fail else WARN
        spread = "too few devices for a spread" if small else f"robust z {z:.3g}"
        above = f"{usual:.4g}, the noise about " if usual != median else ""
        reason = (
            f"{d.name} {point.value:.4g} {d.unit} is {worse:.3g} % worse than {above}the median {median:.4g} "
            f"of {len(values)} devices ({spread})"
        )
        d.points[index] = Point(point.node, point.device, point.value, verdict)
        findings.append(Finding(verdict, reason, point.node, point.device, d.check, "fleet"))
    return findings


def _loss(d: Distribution, value: float, reference: float) -> float:
    """How much worse than the reference, in percent."""
    return (percent_worse if d.judged else percent_lost)(value, reference, d.better)


def percent_worse(value: float, reference: float, better: str) -> float:
    """How much worse than the reference, in percent of the reference; negative is better."""
    change = 100 * (value - reference) / abs(reference)
    return change if better == "lower" else -change


def percent_lost(value: float, reference: float, better: str) -> float:
    """The share of the speed that is lost, in percent: a latency that doubles loses half, as half a bandwidth."""
    if better == "higher":
        return percent_worse(value, reference, better)
    return percent_worse(1 / value, 1 / reference, "higher") if value and reference else 0.0


def compare_with_baseline(
    distributions: list[Distribution], baseline: Mapping[ValueKey, Known], thresholds: Thresholds
) -> tuple[list[Finding], str]:
    """Findings about devices that were better in the earlier run, and a note with the number of compared values."""
    findings, compared, total, unlike = [], 0, 0, set()
    noises = rejudge.noises()
    for d in (d for d in distributions if d.better and d.model != "cpu" and d.scope == NODE):
        noise, times = noises.get((d.check, d.name), 0.0), (1, 1) if d.judged else WITHOUT_LIMIT
        if math.isinf(noise):
            continue
        total += len(d.points)
        for point in d.points:
            known = baseline.get((point.node, point.device, d.check, d.name))
            if not known:
                continue
            if reason := known.doubt or (
                f"level {known.level} before, {d.level} after" if known.level != d.level else ""
            ):
                unlike.add((point.node, f"it is not compared with the baseline: {reason}"))
                continue
            if reason := known.differs(d.unit, d.model) or known.impossible(d.check, d.name, d.better):
                reason = f"{d.name} is not compared with the baseline: {reason}"
                findings.append(Finding(INCOMPLETE, reason, point.node, point.device, d.check, "baseline"))
                continue
            if not known.value:  # a time below what the clock can tell: no percentage of it
                continue
            compared += 1
            before, worse = known.value, _loss(d, point.value, known.value)
            if worse > times[0] * thresholds.baseline_warn and abs(point.value - before) > noise:
                verdict = FAIL if worse > times[1] * thresholds.baseline_fail else WARN
                reason = f"{d.name} {point.value:.4g} {d.unit} is {worse:.3g} % worse than {before:.4g} in the baseline"
                findings.append(Finding(verdict, reason, point.node, point.device, d.check, "baseline"))
    findings += [Finding(INCOMPLETE, reason, node, found_by="baseline") for node, reason in sorted(unlike)]
    if not total:
        findings.append(Finding(INCOMPLETE, "no number that is compared with a baseline", found_by="baseline"))
    elif not compared and not findings:
        findings.append(Finding(INCOMPLETE, "the baseline has none of these numbers", found_by="baseline"))
    return findings, f"baseline: {compared} of {total} numbers compared"
