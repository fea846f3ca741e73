"""Outliers: devices that are worse than the rest of the fleet, or worse than in an earlier run.

An outlier is far from the median in two ways: by robust z (Iglewicz and Hoaglin, How to Detect and
Handle Outliers, 1993), so that a fleet with a wide spread does not produce many findings, and by a
minimum percentage, so that a very tight fleet does not turn noise into findings (healthy GPUs of
one model differ by about 5 %). Numbers without a limit, such as disks and latencies, spread more:
their percentages are WITHOUT_LIMIT times as large. Among thousands of healthy GPUs some are far
from the median by chance, so the required z grows with their number. Fewer than SMALL devices have
no meaningful spread: only the percentages count, doubled.

Nothing within the noise of a number is an outlier, as its Measure declares it: twice the median of
0.01 ms is not late.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from gpuworker.accept import registry
from gpuworker.accept.check_spec import Measure
from gpuworker.accept.judge import Judged
from gpuworker.fleet.check_findings import world_name
from gpuworker.fleet.fleet_report import Distribution, Finding, Point, natural_sort_key
from gpuworker.judgement.report import FAIL, INCOMPLETE, NODE, WARN, Report

WARN_PERCENT, FAIL_PERCENT = 5, 10  # worse than the median, or than an earlier run
SMALL = 5
MOST_NAMED = 8  # nodes in a note
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

    def unlike(self, later: Distribution, device: str) -> tuple[str, str]:
        """The device, or "" for the whole node, and why it is not compared; or two empty texts."""
        if self.doubt:
            return "", self.doubt
        if self.level != later.level:
            return "", f"level {self.level} before, {later.level} after"
        pairs = (self.unit, later.unit), (self.model, later.model)
        found = next((f"{was} before, {now} after" for was, now in pairs if was != now), "")
        return device * bool(found), found


@functools.cache
def measures() -> dict[tuple[str, str], Measure]:
    """Every number of a node by check and name."""
    found = registry.node_checks().items()
    return {
        (check, name): measure
        for check, each in found
        for name, measure in each.spec.measures.items()
    }


def distributions(found: Iterable[Judged]) -> list[Distribution]:
    """The values of all reports in comparable groups: same check, measure, unit, direction, model,
    level and scope.

    Worlds have different sizes and fabrics, so their values are shown and not compared.
    """
    groups: dict[tuple, list[Point]] = defaultdict(list)
    limits: dict[tuple, set[tuple]] = defaultdict(set)  # (limit, warn_limit, limit_source)
    for each in found:
        report, scope = each.report, each.report.scope
        model_for = functools.cache(functools.partial(model_of, models=gpu_models(report)))
        name = report.node if scope == NODE else world_name(report)
        for check in each.checks:
            for m in check.numbers:
                if math.isfinite(m.value) and not m.refused:
                    model = model_for(m.device)
                    judged = m.judged and m.better != "" and model != "cpu" and scope == NODE
                    key = (
                        check.name,
                        m.name,
                        m.unit,
                        model,
                        report.requested.level,
                        scope,
                        m.better,
                        judged,
                    )
                    groups[key].append(Point(name, m.device, m.value))
                    limits[key].add((m.limit, m.warn_limit, m.limit_source))
    result = []
    for key, points in groups.items():
        points.sort(key=lambda p: (natural_sort_key(p.node), natural_sort_key(p.device)))
        median = statistics.median(point.value for point in points)
        mad = statistics.median(abs(point.value - median) for point in points)
        fields = (set(values) for values in zip(*limits[key], strict=True))
        limit, warn_limit, source = (
            values.pop() if len(values) == 1 else None for values in fields
        )
        measure = measures().get(key[:2])
        meaning = measure.proves if measure else ""
        result.append(
            Distribution(*key, points, median, mad, limit, warn_limit, source or "", meaning)
        )
    return result


def gpu_models(report: Report) -> list[str]:
    """The node's GPU models by index; ["cpu"] in a rehearsal."""
    return ["cpu"] if report.requested.device == "cpu" else report.models


def model_of(device: str, models: list[str]) -> str:
    """The model of a device such as "cuda:3"; for a whole node or a pair, all models of the
    node.
    """
    if device.startswith("cuda:") and device[5:].isdecimal() and int(device[5:]) < len(models):
        return models[int(device[5:])]
    return " + ".join(sorted(set(models))) or "unknown"


def find_outliers(
    distribution: Distribution,
    drifted: Mapping[str, str] = MappingProxyType({}),
) -> list[Finding]:
    """Findings about devices that are worse than the fleet. Sets the verdicts of the distribution's
    points.

    A link is compared with the link of the same name on other nodes: links within one node may
    differ by design. `drifted`: nodes with other software than most -> which; what explains a
    difference is no fault of a part.
    """
    if not distribution.better or distribution.model == "cpu" or distribution.scope != NODE:
        return []
    groups: dict[str, list[int]] = defaultdict(list)
    for index, point in enumerate(distribution.points):
        groups[point.device if "→" in point.device else ""].append(index)
    return [
        finding
        for indices in groups.values()
        for finding in _outliers(distribution, indices, drifted)
    ]


def _outliers(d: Distribution, indices: list[int], drifted: Mapping[str, str]) -> list[Finding]:
    """Outliers among the points with these indices."""
    values = [d.points[index].value for index in indices]
    median = statistics.median(values)
    known = measures().get((d.check, d.name))
    noise = known.noise if known else 0.0
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
        if worse <= factors[0] * WARN_PERCENT or (not small and z <= least_z):
            continue
        if abs(point.value - median) <= noise:
            continue
        failed = worse > factors[1] * FAIL_PERCENT and not (known and known.of_others)
        verdict = FAIL if failed and point.node not in drifted else WARN
        spread = "too few devices for a spread" if small else f"robust z {z:.3g}"
        above = f"{usual:.4g}, the noise about " if usual != median else ""
        reason = (
            f"{d.name} {point.value:.4g} {d.unit} is {worse:.3g} % worse than {above}the median {median:.4g} "
            f"of {len(values)} devices ({spread})"
        )
        d.points[index] = Point(point.node, point.device, point.value, verdict)
        kind, numbers = "outlier", {"measure": d.name, "value": point.value}
        if explained := drifted.get(point.node):
            kind, reason = "drift", f"{reason}; this node has {explained}"
        findings.append(
            Finding(verdict, kind, reason, point.node, point.device, d.check, "fleet", numbers)
        )
    return findings


def _loss(d: Distribution, value: float, reference: float) -> float:
    """How much worse than the reference, in percent."""
    return (percent_worse if d.judged else percent_lost)(value, reference, d.better)


def percent_worse(value: float, reference: float, better: str) -> float:
    """How much worse than the reference, in percent of the reference; negative is better."""
    change = 100 * (value - reference) / abs(reference)
    return change if better == "lower" else -change


def percent_lost(value: float, reference: float, better: str) -> float:
    """The share of the speed that is lost, in percent: a latency that doubles loses half, as
    half a bandwidth.
    """
    if better == "higher":
        return percent_worse(value, reference, better)
    return percent_worse(1 / value, 1 / reference, "higher") if value and reference else 0.0


def compare_with_baseline(
    distributions: list[Distribution], baseline: Mapping[ValueKey, Known]
) -> tuple[list[Finding], str]:
    """Findings about devices that were better in the earlier run, and a note with the number of
    compared values.
    """
    findings, compared, total, unlike = [], 0, 0, set()
    for d in (d for d in distributions if d.better and d.model != "cpu" and d.scope == NODE):
        measure, times = measures().get((d.check, d.name)), (1, 1) if d.judged else WITHOUT_LIMIT
        noise = measure.noise if measure else 0.0
        if math.isinf(noise):
            continue
        total += len(d.points)
        for point in d.points:
            known = baseline.get((point.node, point.device, d.check, d.name))
            if not known:
                continue
            device, reason = known.unlike(d, point.device)
            if reason:
                reason = f"it is not compared with the baseline: {reason}"
                unlike.add((point.node, device, reason))
                continue
            if not known.value:  # a time below what the clock can tell: no percentage of it
                continue
            compared += 1
            before, worse = known.value, _loss(d, point.value, known.value)
            if worse > times[0] * WARN_PERCENT and abs(point.value - before) > noise:
                verdict = FAIL if worse > times[1] * FAIL_PERCENT else WARN
                reason = f"{d.name} {point.value:.4g} {d.unit} is {worse:.3g} % worse than {before:.4g} in the baseline"
                findings.append(
                    Finding(
                        verdict,
                        "baseline",
                        reason,
                        point.node,
                        point.device,
                        d.check,
                        "baseline",
                        {"measure": d.name, "value": point.value},
                    )
                )
    findings += [
        Finding(INCOMPLETE, "contradiction", reason, node, device, found_by="baseline")
        for node, device, reason in sorted(unlike)
    ]
    here = {point.node for d in distributions for point in d.points}
    gone = sorted({node for node, *_ in baseline} - here, key=natural_sort_key)
    words = (
        f"; not in this run: {', '.join(gone[:MOST_NAMED])}{' …' * (len(gone) > MOST_NAMED)}"
        if gone
        else ""
    )
    if not total:
        findings.append(
            Finding(
                INCOMPLETE,
                "missing",
                "no number that is compared with a baseline",
                found_by="baseline",
            )
        )
    elif not compared and not findings:
        findings.append(
            Finding(
                INCOMPLETE, "missing", "the baseline has none of these numbers", found_by="baseline"
            )
        )
    return findings, f"baseline: {compared} of {total} numbers compared{words}"
