"""Reading files, folders and logs. A source that cannot be read is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuworker.fleet import report_sources
from gpuworker.fleet.report_sources import from_text, read
from gpuworker.judgement.merge import merge
from gpuworker.judgement.reading import NOT_A_REPORT
from gpuworker.judgement.report import PASS
from gpuworker.judgement.sources import Expected, Source
from tests.helpers.fleet_reports import (
    broken_report,
    changed,
    complete_report,
    problem,
    with_problems,
)
from tests.helpers.hostile_files import plant


def nodes(sources: list[Source]) -> list[str]:
    return [source.report.node for source in sources if source.report]


def errors(sources: list[Source]) -> list[str]:
    return [f"{source.name}: {source.error}" for source in sources if source.error]


def test_a_folder_gives_all_reports_in_it_and_leaves_other_results_out(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/report.json").write_text(json.dumps(complete_report("n1")))
    (tmp_path / "n2.jsonl").write_text(json.dumps(complete_report("n2")))
    (tmp_path / "ddp_tests_result.json").write_text('{"ok": true}')
    sources = read(str(tmp_path))
    assert (nodes(sources), errors(sources)) == (["n1", "n2"], [])


def test_other_json_files_of_a_folder_are_named_in_a_note(tmp_path: Path) -> None:
    (tmp_path / "n1.json").write_text(json.dumps(complete_report("n1")))
    for number in range(20):
        (tmp_path / f"other-{number:02}.json").write_text(json.dumps({"a": "x" * 3_000 * number}))
    fleet = merge(read(str(tmp_path)), Expected(1))
    (note,) = (note for note in fleet.notes if NOT_A_REPORT in note)
    assert fleet.verdict == PASS and f"{tmp_path}/other-00.json" in note
    assert note.count(".json") == report_sources.MOST_NAMED


@pytest.mark.parametrize("name", ["absent.json", "empty folder"])
def test_no_report_is_an_error(name: str, tmp_path: Path) -> None:
    if "." not in name:
        (tmp_path / name).mkdir()
    (error,) = errors(read(str(tmp_path / name)))
    assert name in error and ("No such file" in error or "*.json" in error)


def test_another_json_file_that_is_named_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"ok": true}')
    assert errors(read(str(tmp_path / "other.json"))) == [f"{tmp_path}/other.json: {NOT_A_REPORT}"]


def test_a_file_of_many_reports_has_one_per_line() -> None:
    lines = [
        json.dumps(make(name)) for name, make in (("n1", complete_report), ("n2", broken_report))
    ]
    sources = from_text(
        "reports.jsonl", "\n".join([lines[0], "", lines[1][:-8], lines[1]]).encode()
    )
    assert nodes(sources) == ["n1", "n2"], "a damaged line costs its own row"
    (error,) = errors(sources)
    assert error.startswith("reports.jsonl: line 3: not readable as JSON")


@pytest.mark.parametrize(
    "form", ["{}", "[pod/n1/test] {}", "2026-01-01T00:00:00Z {}", "log", "line"]
)
def test_a_log_has_the_reports_that_pods_could_not_send(form: str) -> None:
    """With a prefix, with a time, and as docker's and other logs wrap them in JSON."""
    reports = [json.dumps(complete_report(f"n{number}")) for number in (1, 2)]

    def logged(line: str) -> str:
        return form.format(line) if "{" in form else json.dumps({form: line + "\n", "time": 1})

    lines = ["[RESULT] node=n1", *reports, reports[0][:100], "[END]"]
    found = from_text("log", "\n".join(map(logged, lines)).encode())
    assert [source.report and source.report.node for source in found] == ["n1", "n2", None]
    (alone,) = from_text("log", logged(reports[0]).encode())
    assert alone.report.node == "n1"


@pytest.mark.parametrize("kind", ["pipe", "endless", "dangling", "huge"])
def test_what_is_no_file_in_a_folder_costs_its_own_row(
    kind: str, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(report_sources, "MOST_FILE_BYTES", 1 << 20)
    (tmp_path / "n1.json").write_text(json.dumps(complete_report("n1")))
    plant(tmp_path / "n2.json", kind)
    sources = read(str(tmp_path))
    assert nodes(sources) == ["n1"]
    (error,) = errors(sources)
    assert error.startswith(f"{tmp_path}/n2.json: ")


def test_a_link_to_a_report_is_read(tmp_path: Path) -> None:
    """A mounted ConfigMap has links alone."""
    (tmp_path / "in").mkdir()
    (tmp_path / "outside").write_text(json.dumps(complete_report("n1")))
    plant(tmp_path / "in/n1.json", "outside")
    assert nodes(read(str(tmp_path / "in"))) == ["n1"]


DAMAGES = {
    "schema_version": (1, "schema_version 1"),
    "node": ("", "node is empty"),
    "run_id": (..., "has no run_id"),
    "started": ("2026-01-05T10:00:00", "started is '2026"),
    "requested": ({}, "requested has no device"),
    "facts": ([], "facts is '[]'"),
    "requested/gpus": ("8", "requested.gpus is '8'"),
    "checks": ({}, "checks is '{}'"),
    "checks/0": ("x", "checks[0] is 'x'"),
    "checks/1/name": (None, "checks[1].name is 'None'"),
    "checks/1/measurements": (..., "checks[1] has no measurements"),
    "checks/1/measurements/0/value": ("fast", "checks[1].measurements[0].value is 'fast'"),
    "checks/1/measurements/0/unit": (..., "checks[1].measurements[0] has no unit"),
    "checks/1/hashes": ([], "checks[1].hashes is '[]'"),
}


@pytest.mark.parametrize("path", DAMAGES)
def test_a_damaged_report_is_refused_with_the_path_of_the_damage(path: str) -> None:
    value, reason = DAMAGES[path]
    (source,) = from_text(
        "n1.json", json.dumps(changed(complete_report("n1"), path, value)).encode()
    )
    assert source.report is None and reason in source.error


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [("of another release", {}), ("limit", {"value": "7"}), ("limit", {"value": None})],
)
def test_a_problem_of_another_origin_is_refused(kind: str, numbers: dict) -> None:
    report = with_problems(
        complete_report("n1"), "compute", problem("FAIL", kind, "words", **numbers)
    )
    (source,) = from_text("n1", json.dumps(report).encode())
    assert source.report is None and "problems" in source.error
