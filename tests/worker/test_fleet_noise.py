"""No FAIL on healthy hardware by comparison: a difference within the noise of a number is not an
outlier.
"""

from __future__ import annotations

import pytest

from gpuworker.judgement import registry
from gpuworker.judgement.report import FAIL, PASS, WARN
from tests.helpers.fleet_reports import check, measurement, merged, node_report

MEASURES = {
    (name, number): measure
    for name, registered in registry.load().items()
    for number, measure in registered.measures.items()
}


def reports_of(check_name: str, number: str, values: list[float]) -> list[dict]:
    """A node for each value."""
    measure, found = MEASURES[check_name, number], []
    for index, value in enumerate(values):
        report = node_report(f"n{index}")
        judged = measure.limit is not None
        numbers = [measurement(value, "", number, measure.unit, measure.better, judged)]
        report["checks"].append(check(check_name, measurements=numbers))
        found.append(report)
    return found


@pytest.mark.parametrize("nodes", [2, 16])
@pytest.mark.parametrize(
    ("check_name", "number", "usual", "other"),
    [
        ("stragglers", "latest_arrival", 0.01, 0.05),
        ("stragglers", "latest_arrival", 0.02, 0.2),
        ("stragglers", "latest_arrival", 0.1, 2.0),
        ("stragglers", "latest_arrival", 0.0, 1.0),
        ("correctness", "gradient_error", 2.5e-16, 1.1e-15),
        ("correctness", "gradient_error", 0.0, 5e-11),
        ("storage", "storage_read_p99", 0.02, 0.09),
        ("repeatability", "repeats", 500.0, 100.0),
        ("memory", "memory_tested", 79.0, 62.0),
        ("training", "loss_drop", 22.0, 15.0),
    ],
)
def test_the_noise_of_a_number_is_no_outlier(
    check_name: str, number: str, usual: float, other: float, nodes: int
) -> None:
    reports = reports_of(check_name, number, [usual] * (nodes - 1) + [other])
    fleet = merged(*reports)
    assert (fleet.verdict, fleet.findings) == (PASS, [])


@pytest.mark.parametrize(
    ("check_name", "number", "usual", "other", "verdict"),
    [
        ("stragglers", "latest_arrival", 0.01, 300.0, FAIL),
        ("stragglers", "latest_arrival", 0.0, 300.0, FAIL),
        ("stragglers", "latest_arrival", 0.5, 8.0, WARN),
        ("storage", "storage_read_p99", 4.5, 56.0, WARN),
        ("storage", "storage_read_p99", 0.02, 5.0, WARN),
        ("storage", "storage_write", 560.0, 45.0, FAIL),
        ("training", "mfu", 0.4, 0.05, FAIL),
        ("host", "host_memory", 200.0, 120.0, WARN),
    ],
)
def test_what_is_far_above_the_noise_is_an_outlier(
    check_name: str, number: str, usual: float, other: float, verdict: str
) -> None:
    fleet = merged(*reports_of(check_name, number, [usual] * 15 + [other]))
    assert [(finding.node, finding.verdict) for finding in fleet.findings] == [("n15", verdict)]
