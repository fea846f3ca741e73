"""The folder of a collector with pipes, links and devices among its reports: each costs its own
report.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuworker.fleet.report_store import ReportStore
from gpuworker.judgement.sources import Expected
from tests.helpers.fleet_reports import complete_report, source
from tests.helpers.hostile_files import plant


@pytest.mark.parametrize(
    "kind", ["pipe", "endless", "outside", "dangling", "folder", "garbage", "huge"]
)
def test_a_collector_starts_whatever_is_no_report(tmp_path: Path, kind: str) -> None:
    (tmp_path / "outside").write_text(json.dumps(complete_report("n3")))
    (tmp_path / "in").mkdir()
    store = ReportStore(tmp_path / "in", Expected(2, run_id="1"))
    assert store.add(source(complete_report("n1")).report)[0] == 200
    plant(tmp_path / "in/x.json", kind)
    fleet = ReportStore(tmp_path / "in", Expected(2, run_id="1")).fleet()
    assert ([node.node for node in fleet.nodes], fleet.verdict) == (["n1"], "INCOMPLETE")


@pytest.mark.parametrize("kind", ["pipe", "outside", "garbage"])
def test_a_report_is_stored_whatever_has_its_name(tmp_path: Path, kind: str) -> None:
    (tmp_path / "outside").write_text("kept")
    (tmp_path / "in").mkdir()
    store = ReportStore(tmp_path / "in", Expected(2, run_id="1"))
    path = store.path("n1")
    for name in (path, path.with_name(path.name + ".partial")):
        plant(name, kind)
    assert store.add(source(complete_report("n1")).report)[0] == 200
    assert json.loads(path.read_text())["node"] == "n1"
    assert (tmp_path / "outside").read_text() == "kept"


@pytest.mark.parametrize("damage", ["cut", "empty", "garbage"])
def test_a_report_that_arrives_again_replaces_its_damaged_file(tmp_path: Path, damage: str) -> None:
    store = ReportStore(tmp_path, Expected(1, run_id="1"))
    store.add(source(complete_report("n1")).report)
    path = store.path("n1")
    path.write_bytes(
        {"cut": path.read_bytes()[:-100], "empty": b"", "garbage": b"\x00\xff"}[damage]
    )
    store = ReportStore(tmp_path, Expected(1, run_id="1"))
    assert store.fleet().verdict == "INCOMPLETE"
    assert store.add(source(complete_report("n1")).report)[0] == 200
    assert (store.fleet().verdict, store.fleet().findings) == ("PASS", [])
    assert ReportStore(tmp_path, Expected(1, run_id="1")).fleet().verdict == "PASS"
