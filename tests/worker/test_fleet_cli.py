"""accept-report as a user runs it: its commands, output files and exit codes."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from gpuworker.fleet import cli
from tests.helpers.fleet_reports import REQUESTED, broken_report, complete_report


def few_checks(node: str, speeds: tuple[float, ...] = (740.0, 740.0), **changes: object) -> dict:
    """A report whose GPUs have these speeds, in TFLOP/s: all of them above the limits."""
    asked = dataclasses.replace(REQUESTED, checks=("environment", "compute"))
    report = complete_report(node, asked, **changes)
    for number in report["checks"][1]["measurements"]:
        if number["name"] == "gemm_bf16":
            number["value"] = speeds[int(number["device"].removeprefix("cuda:"))]
    return report


@pytest.fixture
def report(tmp_path: Path, monkeypatch, capsys):
    """report("ARGUMENT", …) -> (exit code, stdout, stderr), with good and plain (few checks)
    reports of n1, n2.
    """
    monkeypatch.chdir(tmp_path)
    for folder, report in (("good", complete_report), ("plain", few_checks)):
        (tmp_path / folder).mkdir()
        for name in ("n1", "n2"):
            (tmp_path / f"{folder}/{name}.json").write_text(json.dumps(report(name)))
    (tmp_path / "bad.json").write_text(json.dumps(broken_report("n3")))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["accept-report", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return (ended.value.code, *capsys.readouterr())

    return run


@pytest.mark.parametrize(
    ("arguments", "code", "verdict"),
    [
        (["good"], 3, "INCOMPLETE"),
        (["good", "--expect-nodes", "2", "--device", "cuda", "--gpus", "2"], 0, "PASS"),
        (["good", "--expect-nodes", "2", "--device", "cuda", "--gpus", "8"], 3, "INCOMPLETE"),
        (["plain", "--expect-nodes", "2"], 0, "PASS"),
        (["good", "plain", "--expect-nodes", "2"], 3, "INCOMPLETE"),
        (["good", "--expect-nodes", "2"], 0, "PASS"),
        (["good", "--expect-names", "n1,n2"], 0, "PASS"),
        (["good", "bad.json"], 1, "FAIL"),
        (["good", "--expect-nodes", "3"], 3, "INCOMPLETE"),
        (["good", "--expect-names", "n1,n2,n7"], 3, "INCOMPLETE"),
        (["good", "absent.json"], 3, "INCOMPLETE"),
        (["good", "--run-id", "2"], 3, "INCOMPLETE"),
    ],
)
def test_exit_code_is_the_verdict(report, arguments: list[str], code: int, verdict: str) -> None:
    ended, out, _ = report("merge", *arguments)
    assert (ended, out.partition(":")[0]) == (code, verdict)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["good", "--expect-names", "n1,,n2"], "'n1,,n2'"),
        (["good", "--expect-names", "n1,n2,n1"], "n1: named twice"),
        (["good", "--expect-names", "n1", "--expect-nodes", "1"], "omit --expect-nodes"),
        (["good", "--expect-nodes", "0"], "--expect-nodes: 0"),
        (["good", "--gpus", "8"], "--gpus needs --device"),
        (["good", "--inject", ""], "--inject needs --device"),
        (["good", "--json", "x.json", "--html", "./x.json"], "--json and --html"),
        (
            ["good", "--device", "cuda", "--gpus", "2", "--limit", "gemm_bf17=700"],
            "--limit gemm_bf17",
        ),
        (["good", "--device", "cuda"], "--gpus is the number of GPUs"),
        (["good", "--json", "-", "--html", "-"], "standard output"),
    ],
)
def test_contradicting_options_are_usage_errors(report, arguments: list[str], named: str) -> None:
    code, out, err = report("merge", *arguments)
    assert (code, out) == (2, "") and named in err


def test_one_run_writes_all_formats(report, tmp_path: Path) -> None:
    code, out, _ = report(
        "merge", "good", "--json", "r.json", "--html", "r.html", "--expect-nodes", "2"
    )
    assert code == 0 and out.startswith("PASS: 2 of ")
    for name, start in {"r.json": '{"verdict":"PASS"', "r.html": "<!DOCTYPE html>"}.items():
        assert (tmp_path / name).read_text().startswith(start)


@pytest.mark.parametrize("limit", ["gemm_bf16=1", "gemm_bf16=nan", "gemm_bf16=1e9", "gemm_bf16=-5"])
def test_a_limit_that_no_or_every_node_meets_is_no_pass(report, limit: str) -> None:
    code, out, _ = report(
        "merge", "good", "--expect-nodes", "2", "--device", "cuda", "--gpus", "2", "--limit", limit
    )
    assert code != 0 and "limits.gemm_bf16 is" in out


def test_a_result_that_cannot_be_written_is_no_verdict(report, start, tmp_path: Path) -> None:
    program = start(
        "-c",
        NO_TORCH,
        "merge",
        tmp_path / "good",
        "--expect-nodes",
        "2",
        "--json",
        "/nowhere/fleet.json",
    )
    assert program.wait() == 2 and "/nowhere/fleet.json" in program.output


def test_a_fleet_report_is_not_merged_as_a_report(report) -> None:
    """Merging fleet reports would count nodes twice."""
    report("merge", "good", "--json", "fleet.json")
    code, out, _ = report("merge", "fleet.json")
    assert code == 3 and "fleet.json: " in out


def test_merge_needs_no_torch(start, tmp_path: Path) -> None:
    """A report contains all that the fleet report is made of."""
    (tmp_path / "n1.json").write_text(json.dumps(complete_report("n1")))
    program = start("-c", NO_TORCH, "merge", tmp_path, "--expect-nodes", "1")
    assert program.wait() == 0, program.output
    assert program.output.startswith("PASS: 1 of 1 nodes reported")


NO_TORCH = """
import sys
sys.modules["torch"] = None  # an import of it raises
from gpuworker.fleet import cli
cli.main()
"""
