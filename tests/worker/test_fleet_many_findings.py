"""A fleet in which every node has findings is judged about as fast as a good one."""

from __future__ import annotations

from pathlib import Path

from gpuworker.fleet import fleet_report
from gpuworker.fleet.cli import FORMATS
from gpuworker.fleet.expected import Expected
from gpuworker.fleet.fleet_report import Fleet, summary
from gpuworker.fleet.formats.table import table
from gpuworker.fleet.report_store import ReportStore
from gpuworker.judgement.report import INCOMPLETE, Requested
from tests.helpers.fleet_reports import complete_report, merged, source

EIGHT = Requested("cuda", 8, "quick")


def damaged(nodes: int) -> Fleet:
    """Nodes with two of eight GPUs: each of them lacks hundreds of numbers."""
    return merged(*(complete_report(f"n{i}") for i in range(nodes)), expected=Expected(nodes, requested=EIGHT))


def test_the_verdict_of_a_fleet_is_found_once_whatever_asks_for_it(monkeypatch) -> None:
    asked = []
    fleets = [damaged(nodes) for nodes in (2, 4)]
    worst = fleet_report.worst_verdict
    monkeypatch.setattr(fleet_report, "worst_verdict", lambda verdicts: asked.append(1) or worst(verdicts))
    for fleet in fleets:
        asked.clear()
        for text in (summary, table, *FORMATS.values()):
            text(fleet)
        assert fleet.verdict == INCOMPLETE and len(fleet.findings) > 100
        assert len(asked) < 5


def test_a_collector_answers_from_its_last_result_until_something_changes(tmp_path: Path, monkeypatch) -> None:
    store = ReportStore(tmp_path, Expected(2, run_id="1", requested=EIGHT))
    store.add(source(complete_report("n1")).report)
    first, asked, worst = store.fleet(), [], fleet_report.worst_verdict
    line = summary(first)
    monkeypatch.setattr(fleet_report, "worst_verdict", lambda verdicts: asked.append(1) or worst(verdicts))
    store.add(source(complete_report("n1")).report)  # the same again
    store.watch()
    assert store.fleet() is first and summary(store.fleet()) == line and not asked
    store.add(source(complete_report("n2")).report)
    assert store.fleet() is not first
