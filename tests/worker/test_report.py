"""The verdict of a node, and the files that carry it."""

import dataclasses
import json
import math
import random
import threading
from pathlib import Path

import pytest

from gpuworker.accept.report import Check, Coverage, Measurement, Report, from_log_lines, to_log_lines, write_json
from gpuworker.runtime.log import write_termination_message


def report(*verdicts: str) -> Report:
    checks = [Check(f"check{number}", verdict, f"why{number}") for number, verdict in enumerate(verdicts)]
    started = "2026-01-01T00:00:00+00:00"
    return Report("node-a", "pod-a", "1", "cuda", "quick", started, Coverage(len(checks)), checks)


@pytest.mark.parametrize(
    ("checks", "verdict"),
    [
        ([], "INCOMPLETE"),
        (["SKIP"], "INCOMPLETE"),
        (["PASS"], "PASS"),
        (["PASS", "SKIP"], "PASS"),
        (["PASS", "WARN"], "WARN"),
        (["WARN", "INCOMPLETE", "PASS"], "INCOMPLETE"),
        (["INCOMPLETE", "FAIL", "PASS"], "FAIL"),
    ],
)
def test_the_worst_check_is_the_verdict_and_nothing_is_not_a_pass(checks, verdict):
    assert report(*checks).verdict == verdict


def test_the_reason_is_that_of_the_verdict():
    assert report("PASS", "INCOMPLETE", "FAIL", "FAIL").reason == "check2: why2; check3: why3"
    assert report().summary == "INCOMPLETE: no check ran"


def test_the_schema_and_the_report_have_the_same_fields():
    schema = json.loads((Path(__file__).parents[2] / "schemas" / "report.schema.json").read_text())
    check = schema["properties"]["checks"]["items"]
    measurement = check["properties"]["measurements"]["items"]
    coverage = schema["properties"]["coverage"]
    for described, made in ((measurement, Measurement), (check, Check), (coverage, Coverage), (schema, Report)):
        names = {field.name for field in dataclasses.fields(made)}
        names |= {"verdict", "reason", "rehearsal"} if made is Report else set()
        assert set(described["properties"]) == set(described["required"]) == names, made


@pytest.mark.parametrize("size", [0, 40_000])
def test_a_report_travels_in_the_log(size):
    """Among other lines, behind prefixes, twice, in any order of its parts."""
    data = report("PASS").to_dict() | {"facts": {"noise": random.Random(0).randbytes(size).hex()}}
    lines = to_log_lines(data)
    assert max(len(line) for line in lines) < 16 * 1024
    assert (len(lines) > 1) is (size > 0)
    prefixed = [f"[pod/accept-x/accept] {line}" for line in reversed(lines)]
    assert from_log_lines(["[ENV] node=a", *prefixed, *lines, "[RESULT] …", "[REPORT] nothing"]) == [data]
    for broken in (lines[:-1] + [lines[-1][:-4]], [lines[0].replace("1/1", "1/2")] + lines[1:-1]):
        with pytest.raises(ValueError, match=r"report \w+: (part|damaged)"):
            from_log_lines(broken)


def test_a_file_is_whole_at_any_moment(tmp_path):
    path = tmp_path / "folder" / "report.json"
    write_json(path, {"round": -1})
    writer = threading.Thread(target=lambda: [write_json(path, {"round": i, "x": "y" * 100_000}) for i in range(50)])
    writer.start()
    seen = {-1}
    while writer.is_alive():
        seen.add(json.loads(path.read_text())["round"])
    writer.join()
    assert json.loads(path.read_text())["round"] == 49
    assert [entry.name for entry in path.parent.iterdir()] == ["report.json"]


def test_what_cannot_be_written_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "report.json"
    write_json(path, {"verdict": "FAIL"})
    with pytest.raises(TypeError):
        write_json(path, {"verdict": object()})
    assert json.loads(path.read_text()) == {"verdict": "FAIL"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


def test_files_are_json_for_every_reader(tmp_path):
    """NaN and Infinity are no JSON; most readers outside Python refuse the whole file."""
    write_json(tmp_path / "r.json", {"loss": math.nan, "more": [1.5, (math.inf, {"x": -math.inf})]})
    found = json.loads((tmp_path / "r.json").read_text(), parse_constant=lambda word: pytest.fail(f"{word} in JSON"))
    assert found == {"loss": None, "more": [1.5, [None, {"x": None}]]}


def test_last_words_fit_what_kubernetes_keeps(termination_log):
    write_termination_message("FAIL: " + "ü" * 5000)
    written = termination_log.read_bytes()
    assert written.startswith(b"FAIL: ")
    assert 3000 < len(written) <= 4096


def test_no_last_words_outside_kubernetes(tmp_path, monkeypatch):
    monkeypatch.setenv("TERMINATION_LOG", str(tmp_path / "none"))
    write_termination_message("PASS")
    assert not (tmp_path / "none").exists()
