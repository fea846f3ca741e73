"""No PASS without evidence: coverage, duplicates, gaps, and what a report says against what it holds."""

from __future__ import annotations

import pytest

from gpuworker.accept.report import FAIL, INCOMPLETE, PASS, SKIP, WARN
from gpuworker.fleet.fleet_report import Fleet, natural
from gpuworker.fleet.merge import Expected, merge
from gpuworker.fleet.report_sources import Source
from tests.helpers.fleet_reports import check, failing, measurement, merged, node_report

pytestmark = pytest.mark.usefixtures("known_measures")


def said(fleet: Fleet) -> list[tuple[str, str, str]]:
    return [(finding.verdict, finding.node, finding.reason) for finding in fleet.findings]


def test_all_expected_nodes_passed() -> None:
    fleet = merged(node_report("n1"), node_report("n2"), expected=Expected(names=("n1", "n2")))
    assert (fleet.verdict, fleet.reason, fleet.findings, fleet.notes) == (PASS, "", [], [])
    assert (fleet.coverage.nodes_reported, fleet.coverage.gpus_seen) == (2, 4)


def test_nothing_is_no_pass() -> None:
    fleet = merge([])
    assert (fleet.verdict, fleet.reason) == (INCOMPLETE, "no node reported")


def test_a_missing_node_is_named() -> None:
    fleet = merged(node_report("n1"), expected=Expected(names=("n1", "n2", "n10")))
    assert fleet.verdict == INCOMPLETE
    assert said(fleet) == [(INCOMPLETE, name, "expected, and no report came") for name in ("n2", "n10")]


def test_too_few_nodes() -> None:
    fleet = merged(node_report("n1"), expected=Expected(count=3))
    assert (fleet.verdict, fleet.reason) == (INCOMPLETE, "1 of 3 expected nodes reported")


def test_an_unknown_number_of_nodes_is_said() -> None:
    fleet = merged(node_report("n1"), expected=Expected())
    assert fleet.verdict == PASS
    assert fleet.notes == ["nobody said how many nodes there are, so a node that is missing would not be noticed"]


def test_more_nodes_than_expected_are_said() -> None:
    fleet = merged(node_report("n1"), node_report("n2"), expected=Expected(count=1))
    assert fleet.notes == ["2 nodes reported, more than the 1 expected"]


def test_a_file_that_cannot_be_read_is_incomplete() -> None:
    fleet = merge([Source("n1", node_report("n1")), Source("n2.json", error="cut off")])
    assert (fleet.verdict, fleet.reason) == (INCOMPLETE, "n2.json: cut off")


def test_a_fault_outranks_a_gap_and_both_are_named() -> None:
    fleet = merged(failing("n1"), expected=Expected(count=2))
    assert fleet.verdict == FAIL
    assert [finding.verdict for finding in fleet.findings] == [FAIL, INCOMPLETE]
    assert fleet.reason == "n1 compute: cuda:1: 2 products are wrong"


def test_the_newest_report_of_a_node_counts_and_that_is_said() -> None:
    """By the time, not by the text or the order: 12:30 in a zone two hours ahead is 10:30."""
    old = node_report("n1", started="2026-01-05T11:00:00+00:00")
    new = {**failing("n1"), "started": "2026-01-05T13:30:00+02:00"}
    for reports in ([old, new], [new, old]):
        fleet = merged(*reports, expected=Expected(count=1))
        assert (fleet.verdict, len(fleet.nodes)) == (FAIL, 1)
        assert fleet.notes == ["n1: 2 reports; the newest counts, started 2026-01-05T13:30:00+02:00"]


def test_reports_of_another_run_do_not_count() -> None:
    fleet = merged(node_report("n1", run_id="2"), node_report("n2"), expected=Expected(count=2, run_id="2"))
    assert (fleet.verdict, [node.node for node in fleet.nodes]) == (INCOMPLETE, ["n1"])
    assert fleet.notes == ["n2: run 1 of n2 is not counted; this is run 2"]


@pytest.mark.parametrize(
    ("report", "verdict", "reason"),
    [
        (node_report("n", checks=[]), INCOMPLETE, "no check of this node passed or failed"),
        (node_report("n", checks=[check("a", SKIP)]), INCOMPLETE, "no check of this node passed or failed"),
        (node_report("n", checks=[check("a"), check("b", FAIL, "x")]), FAIL, "x"),
        (node_report("n", checks=[check("a"), check("b", INCOMPLETE, "x")]), INCOMPLETE, "x"),
        (node_report("n", verdict=WARN), INCOMPLETE, "the report says WARN, its checks do not"),
        (node_report("n", verdict=FAIL, reason="y"), FAIL, "the report says FAIL, its checks do not: y"),
        (
            node_report("n", coverage={"checks_expected": 5, "checks_reported": 3, "gpus_expected": 2, "gpus_seen": 2}),
            INCOMPLETE,
            "the report covers 3 of 5 checks",
        ),
        (
            node_report("n", coverage={"checks_expected": 3, "checks_reported": 3, "gpus_expected": 8, "gpus_seen": 7}),
            INCOMPLETE,
            "the report covers 7 of 8 gpus",
        ),
    ],
)
def test_a_verdict_must_be_borne_out_by_the_report(report: dict, verdict: str, reason: str) -> None:
    fleet = merged(report)
    assert (fleet.verdict, fleet.nodes[0].verdict) == (verdict, verdict)
    assert reason in fleet.reason


def test_a_warning_of_a_node_is_the_fleets() -> None:
    report = node_report("n1", verdict=WARN, reason="compute: slow")
    report["checks"][1] |= {"verdict": WARN, "reason": "slow"}
    fleet = merged(report, node_report("n2"))
    assert (fleet.verdict, fleet.reason) == (WARN, "n1 compute: slow")
    assert [node.verdict for node in fleet.nodes] == [WARN, PASS]


def test_what_a_reader_must_know_is_noted() -> None:
    reports = [
        node_report("n1", device="cpu", level="full"),
        node_report("n2", injected="slow-gpu", run_id="7"),
    ]
    notes = "\n".join(merged(*reports, expected=Expected(2, gone={"n1": "2026-01-05T12:00:00+00:00"})).notes)
    for part in (
        "a CPU rehearsal: no GPU was tested",
        "nodes of different runs are mixed: 1, 7",
        "nodes of different levels are mixed: full, quick",
        "nodes of different devices are mixed: cpu, cuda",
        "the fault slow-gpu was put in on purpose (n2): this is no verdict on the hardware",
        "n1: its pod is gone; this is what it said, last seen 2026-01-05T12:00:00+00:00",
    ):
        assert part in notes


def test_pods_that_still_test_keep_the_fleet_incomplete() -> None:
    fleet = merged(node_report("n1"), expected=Expected(testing=("10.0.0.7",)))
    assert (fleet.verdict, fleet.reason) == (INCOMPLETE, "pod 10.0.0.7 is there and has no report yet")


def test_nodes_are_in_the_order_that_people_count() -> None:
    fleet = merged(*(node_report(name) for name in ("n10", "n2", "n1")))
    assert [node.node for node in fleet.nodes] == ["n1", "n2", "n10"]
    assert sorted(["a-10-b", "a-9-c", "a", "10", "b"], key=natural) == ["10", "a", "a-9-c", "a-10-b", "b"]


def test_a_number_that_is_none_is_left_out_of_the_statistics() -> None:
    report = node_report("n1")
    report["checks"][1]["measurements"][0] = measurement(None, "cuda:0")
    (distribution,) = merged(report).distributions
    assert [(point.device, point.value) for point in distribution.points] == [("cuda:1", 100.0)]
