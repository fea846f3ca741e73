"""No PASS without evidence: coverage, duplicates, missing reports, and verdicts that the checks do
not support.
"""

from __future__ import annotations

import dataclasses

import pytest

from gpuworker.judgement.fleet_report import Fleet
from gpuworker.judgement.report import FAIL, INCOMPLETE, PASS, SKIP, Requested
from gpuworker.judgement.sources import Expected
from tests.helpers.fleet_reports import (
    REQUESTED,
    check,
    complete_report,
    failing,
    measurement,
    merged,
    node_report,
)


def found(fleet: Fleet) -> list[tuple[str, str, str]]:
    return [(finding.verdict, finding.node, finding.found_by) for finding in fleet.findings]


def test_all_expected_nodes_passed() -> None:
    fleet = merged(node_report("n1"), node_report("n2"), expected=Expected(names=("n1", "n2")))
    assert (fleet.verdict, fleet.reason, fleet.findings, fleet.notes) == (PASS, "", [], [])
    assert (fleet.coverage.nodes_reported, fleet.coverage.gpus_seen) == (2, 4)


def test_gpus_of_nodes_without_a_report_are_expected_too() -> None:
    requested = Requested("cuda", 2, "quick")
    fleet = merged(node_report("n1"), expected=Expected(count=3, requested=requested))
    assert (fleet.coverage.gpus_seen, fleet.coverage.gpus_expected) == (2, 6)


def test_more_nodes_than_expected_are_incomplete() -> None:
    fleet = merged(node_report("n1"), node_report("n2"), expected=Expected(count=1))
    assert fleet.verdict == INCOMPLETE
    assert fleet.reason.startswith("2 nodes reported") and "1 expected" in fleet.reason


def test_a_fault_outranks_a_missing_node_and_both_are_named() -> None:
    fleet = merged(failing("n1"), expected=Expected(count=2))
    assert fleet.verdict == FAIL
    assert [finding.verdict for finding in fleet.findings] == [FAIL, INCOMPLETE]
    assert fleet.reason == "n1 cuda:1 compute: 2 products are wrong"


def test_the_newest_report_of_a_node_counts_and_that_is_said() -> None:
    """By the time, not by the text or the order: 12:30 in a zone two hours ahead is 10:30."""
    old = node_report("n1", started="2026-01-05T11:00:00+00:00")
    new = {**failing("n1"), "started": "2026-01-05T13:30:00+02:00"}
    for reports in ([old, new], [new, old]):
        fleet = merged(*reports, expected=Expected(count=1))
        assert (fleet.verdict, len(fleet.nodes)) == (FAIL, 1)
        (note,) = fleet.notes
        assert note.startswith("n1: ") and "started 2026-01-05T13:30:00+02:00" in note


@pytest.mark.parametrize(
    ("report", "verdict", "reason"),
    [
        (node_report("n", checks=[]), INCOMPLETE, "no check"),
        (node_report("n", checks=[check("a", SKIP)]), INCOMPLETE, "no check"),
    ],
)
def test_a_verdict_needs_evidence_in_the_report(report: dict, verdict: str, reason: str) -> None:
    fleet = merged(report)
    assert (fleet.verdict, fleet.nodes[0].verdict) == (verdict, verdict)
    assert reason in fleet.reason


def test_a_value_that_is_null_is_left_out_of_the_statistics() -> None:
    report = node_report("n1")
    report["checks"][1]["measurements"][0] = measurement(None, "cuda:0")
    (distribution,) = merged(report).distributions
    assert [(point.device, point.value) for point in distribution.points] == [("cuda:1", 100.0)]


def test_limits_of_the_user_are_in_the_notes() -> None:
    """All nodes passed, by a limit that somebody lowered."""
    report = complete_report("n1", dataclasses.replace(REQUESTED, limits={"gemm_bf16": 100.0}))
    assert [note for note in merged(report).notes if "gemm_bf16 100" in note]
    assert not [note for note in merged(complete_report("n1")).notes if "limits" in note]


def test_a_rehearsal_proves_nothing_about_gpus_and_accuses_none() -> None:
    rehearsed, asked = Requested("cpu", 0, "quick"), Requested("cuda", 8, "quick")
    reports = [complete_report(f"n{number}", rehearsed) for number in range(3)]
    fleet = merged(*reports, expected=Expected(3, requested=asked))
    assert fleet.verdict == INCOMPLETE and fleet.rehearsal
    assert {finding.kind for finding in fleet.findings} <= {
        "contradiction",
        "nodes-expected",
        "missing",
    }
