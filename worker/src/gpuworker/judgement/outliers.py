"""Outliers: devices that are worse than the rest of the fleet.

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
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from gpuworker.judgement import registry
from gpuworker.judgement.check_spec import Measure
from gpuworker.judgement.differences import FEWEST, Software
from gpuworker.judgement.findings import Finding, gpu_models, model_of, world_name
from gpuworker.judgement.fleet_report import Distribution, Point, natural_sort_key
from gpuworker.judgement.judge import Judged
from gpuworker.judgement.report import FAIL, NODE, PASS, WARN

WARN_PERCENT, FAIL_PERCENT = 5, 10  # worse than the median
SMALL = 5
ANY = Software("", 0, "")  # of a node whose software is that of the others
LEAST_Z = 3.5
FALSE_ALARMS = 0.001  # expected per measure in a healthy fleet
WITHOUT_LIMIT = (4, 7.5)  # times the percentages for WARN and FAIL
MAD_PER_SIGMA = 0.6745  # MAD of normally distributed values, in standard deviations


@functools.cache
def measures() -> dict[tuple[str, str], Measure]:
    """Every number of a node by check and name."""
    return {
        (check, name): measure
        for check, each in registry.node_checks().items()
        for name, measure in each.measures.items()
    }


def distributions(found: Iterable[Judged]) -> list[Distribution]:
    """The values of all reports in comparable groups: same check, measure, unit, direction, model,
    level and scope.

    Worlds have different sizes and fabrics, so their values are shown and not compared.
    """
    groups: dict[tuple, list[Point]] = defaultdict(list)
    limits: dict[tuple, set[tuple]] = defaultdict(set)  # (limit, warn_limit, limit_source)
    for each in found:
        report, scope, level = each.report, each.report.scope, each.report.requested.level
        model_for = functools.cache(functools.partial(model_of, models=gpu_models(report)))
        node = report.node if scope == NODE else world_name(report)
        for check in each.checks:
            for m in check.numbers:
                if math.isfinite(m.value) and not m.refused:
                    model = model_for(m.device)
                    judged = m.judged and m.better != "" and model != "cpu" and scope == NODE
                    key = (check.name, m.name, m.unit, model, level, scope, m.better, judged)
                    groups[key].append(Point(node, m.device, m.value))
                    limits[key].add((m.limit, m.warn_limit, m.limit_source))
    result = []
    for key, points in groups.items():
        points.sort(key=lambda p: (natural_sort_key(p.node), natural_sort_key(p.device)))
        fields = (set(values) for values in zip(*limits[key], strict=True))
        limit, warn_limit, source = (v.pop() if len(v) == 1 else None for v in fields)
        found = Distribution(*key, points, *spread(points), limit, warn_limit, source or "")
        found.meaning = measure.proves if (measure := measure_of(found)) else ""
        result.append(found)
    return result


def spread(points: Iterable[Point]) -> tuple[float, float]:
    """Median, and median absolute deviation."""
    values = [point.value for point in points]
    median = statistics.median(values)
    return median, statistics.median(abs(value - median) for value in values)


def measure_of(d: Distribution) -> Measure | None:
    return measures().get((d.check, d.name))


def noise_of(d: Distribution) -> float:
    measure = measure_of(d)
    return measure.noise if measure else 0.0


def grade(d: Distribution, value: float, reference: float, times: int = 1) -> tuple[str, float]:
    """PASS, WARN or FAIL of a value, and how much worse than the reference it is, in percent.

    `times`: as large are the percentages. What other nodes can cause is no FAIL.
    """
    warn, fail = (1, 1) if d.judged else WITHOUT_LIMIT
    worse = (percent_worse if d.judged else percent_lost)(value, reference, d.better)
    measure = measure_of(d)
    if worse <= times * warn * WARN_PERCENT:
        return PASS, worse
    failed = worse > times * fail * FAIL_PERCENT and not (measure and measure.of_others)
    return FAIL if failed else WARN, worse


def find_outliers(
    d: Distribution, software: Mapping[str, Software] = MappingProxyType({})
) -> list[Finding]:
    """Findings about devices that are worse than the fleet. Sets the verdicts of the distribution's
    points.

    A link is compared with the link of the same name on other nodes: links within one node may
    differ by design. A device is compared with those of nodes with the same software. Where these
    are few it is compared with all, and what other software explains is no fault of a part.
    """
    if not d.better or d.model == "cpu" or d.scope != NODE or math.isinf(noise_of(d)):
        return []
    of_all: dict[str, list[int]] = defaultdict(list)
    alike: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, point in enumerate(d.points):
        own, link = software.get(point.node, ANY), point.device if "→" in point.device else ""
        of_all[link].append(index)
        alike[link, own.version if own.nodes >= FEWEST else ""].append(index)
    return [
        finding
        for (link, version), indices in alike.items()
        for finding in _outliers(d, indices, indices if version else of_all[link], software)
    ]


def _outliers(
    d: Distribution, indices: list[int], others: list[int], software: Mapping[str, Software]
) -> Iterator[Finding]:
    """Outliers of the points with these indices, among `others`."""
    median, mad = spread(d.points[index] for index in others)
    noise, count = noise_of(d), len(others)
    usual = max(median, noise) if d.better == "lower" else median
    if count < 2 or not usual:
        return
    small = count < SMALL
    least_z = max(LEAST_Z, statistics.NormalDist().inv_cdf(1 - FALSE_ALARMS / count))
    words = f"{usual:.4g}, the noise about " if usual != median else ""
    words += f"the median {median:.4g} of {count} devices"
    for index in indices:
        point = d.points[index]
        verdict, worse = grade(d, point.value, usual, 1 + small)
        off = abs(point.value - median)
        z = MAD_PER_SIGMA * off / mad if mad else math.inf
        if verdict == PASS or off <= noise or (not small and z <= least_z):
            continue
        reason = f"{d.name} {point.value:.4g} {d.unit} is {worse:.3g} % worse than {words}"
        reason += " (too few devices for a spread)" if small else f" (robust z {z:.3g})"
        kind, numbers, own = "outlier", {"measure": d.name, "value": point.value}, ANY
        if indices is not others:
            own = software.get(point.node, ANY)
        if own.differs:
            verdict, kind = WARN, "drift"
            reason += f"; this node has {own.differs}"
        d.points[index] = Point(point.node, point.device, point.value, verdict)
        yield Finding(verdict, kind, reason, point.node, point.device, d.check, "fleet", numbers)


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
