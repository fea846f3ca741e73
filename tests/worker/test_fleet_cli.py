"""accept-report as a user runs it: its commands, output files and exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gpuworker.fleet import cli
from tests.helpers.fleet_reports import changed, complete_report, failing, node_report


@pytest.fixture
def report(tmp_path: Path, monkeypatch, capsys):
    """report("ARGUMENT", …) -> (exit code, stdout, stderr), with good and plain (few checks) reports of n1, n2."""
    monkeypatch.chdir(tmp_path)
    for folder, report in (("good", complete_report), ("plain", node_report)):
        (tmp_path / folder).mkdir()
        for name in ("n1", "n2"):
            (tmp_path / f"{folder}/{name}.json").write_text(json.dumps(report(name)))
    (tmp_path / "bad.json").write_text(json.dumps(failing("n3")))

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
        (["plain", "--expect-nodes", "2"], 3, "INCOMPLETE"),
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
        (["good", "--gpus", "0"], "--gpus needs --device"),
        (["good", "--level", "full"], "--level needs --device"),
        (["good", "--level", "quick"], "--level needs --device"),
        (["good", "--check", "compute"], "--check needs --device"),
        (["good", "--limit", "gemm_bf16=700"], "--limit needs --device"),
        (["good", "--inject", ""], "--inject needs --device"),
        (["good", "--baseline-warn", "2"], "--baseline-warn needs --baseline"),
        (["good", "--baseline-fail", "20"], "--baseline-fail needs --baseline"),
        (["good", "--json", "x.json", "--csv", "./x.json"], "--json and --csv"),
        (["good", "--html", "x", "--certificate", "x"], "--html and --certificate"),
        (["good", "--device", "cuda", "--gpus", "2", "--limit", "gemm_bf17=700"], "--limit gemm_bf17"),
        (["good", "--device", "cuda"], "--gpus is the number of GPUs"),
        (["good", "--fleet-warn", "20"], "WARN must not be above"),
        (["good", "--fleet-fail", "200"], "200 is not between 0 and 100"),
        (["good", "--json", "-", "--html", "-"], "standard output"),
        (["good", "--baseline", "absent.json"], "absent.json"),
    ],
)
def test_contradicting_options_are_usage_errors(report, arguments: list[str], named: str) -> None:
    code, out, err = report("merge", *arguments)
    assert (code, out) == (2, "") and named in err


def test_one_run_writes_all_formats(report, tmp_path: Path) -> None:
    code, out, _ = report(
        "merge",
        "good",
        "--json",
        "r.json",
        "--html",
        "r.html",
        "--junit",
        "r.xml",
        "--prometheus",
        "r.prom",
        "--expect-nodes",
        "2",
    )
    assert code == 0 and out.startswith("PASS: 2 of ")
    starts = {"r.json": '{"verdict": "PASS"', "r.html": "<!DOCTYPE html>", "r.xml": "<?xml", "r.prom": "# HELP"}
    for name, start in starts.items():
        assert (tmp_path / name).read_text().startswith(start)


def test_a_format_on_standard_output_replaces_the_table(report) -> None:
    code, out, _ = report("merge", "good", "--json", "-", "--expect-nodes", "2")
    assert code == 0 and json.loads(out)["verdict"] == "PASS"


@pytest.mark.parametrize("arguments", [[], ["send"], ["good"]], ids=" ".join)
def test_a_command_is_required(report, arguments: list[str]) -> None:
    code, out, err = report(*arguments)
    assert (code, out) == (2, "") and "COMMAND" in err


@pytest.mark.parametrize("command", ["merge", "diff", "serve", "submit", "await"])
def test_every_command_has_help(report, command: str) -> None:
    code, out, _ = report(command, "--help")
    assert code == 0 and out.startswith(f"usage: accept-report {command}")


@pytest.mark.parametrize("command", ["merge", "diff", "serve", "submit", "await"])
def test_a_folder_with_the_name_of_a_command_can_be_merged(report, tmp_path: Path, command: str) -> None:
    (tmp_path / "good").rename(tmp_path / command)
    assert report("merge", command)[:2] == (3, report("merge", f"./{command}")[1])


def later(tmp_path: Path, **speeds: tuple[float, ...]) -> None:
    (tmp_path / "later").mkdir()
    for name, values in speeds.items():
        (tmp_path / f"later/{name}.json").write_text(json.dumps(node_report(name, values)))


@pytest.mark.parametrize("earlier", ["plain", "plain.json"], ids=["node reports", "a result of accept-report"])
def test_baseline_and_diff_find_a_drop(report, tmp_path: Path, earlier: str) -> None:
    report("merge", "plain", "--json", "plain.json")
    later(tmp_path, n1=(100.0, 100.0), n2=(100.0, 88.0))
    code, out, _ = report("merge", "later", "--baseline", earlier)
    assert code == 1 and {"88", "12", "100", "[baseline]"} <= set(out.split())
    code, out, _ = report("diff", earlier, "later")
    assert code == 1 and out.startswith("FAIL: 4 numbers of 2 nodes compared\n")
    assert out.splitlines()[3].split()[:6] == ["n2", "cuda:1", "compute", "gemm", "100", "88"]
    assert out.splitlines()[3].endswith("-12.0 %    FAIL")


def test_diff_of_equal_runs_passes_and_a_small_drop_warns(report, tmp_path: Path) -> None:
    assert report("diff", "plain", "plain")[0] == 0
    later(tmp_path, n1=(93.0, 101.0), n2=(100.0, 100.0))
    code, out, _ = report("diff", "plain", "later")
    assert (code, out.partition(":")[0]) == (0, "WARN")
    assert report("diff", "plain", "later", "--warn", "8")[1].startswith("PASS")
    assert report("diff", "plain", "later", "--warn", "2", "--fail", "6")[0] == 1


@pytest.mark.parametrize("options", [["--fail", "3", "--warn", "9"], ["--fail", "3"], ["--warn", "11"]])
def test_a_diff_that_would_not_warn_before_it_fails_is_refused(report, options: list[str]) -> None:
    code, out, err = report("diff", "plain", "plain", *options)
    assert (code, out) == (2, "") and "WARN must not be above" in err


def test_diff_warns_of_a_number_without_a_limit(report, tmp_path: Path) -> None:
    """A latency may vary many times over, so it is not a FAIL."""
    late = complete_report("n1")
    for check in late["checks"]:
        for number in check["measurements"]:
            number["value"] = 500.0 if number["name"] == "latest_arrival" else number["value"]
    early = json.loads(json.dumps(late).replace("500.0", "1.0"))
    for name, each in (("before.json", early), ("after.json", late)):
        (tmp_path / name).write_text(json.dumps(each))
    code, out, _ = report("diff", "before.json", "after.json")
    assert (code, out.partition(":")[0]) == (0, "WARN")


@pytest.mark.parametrize("limit", ["gemm_bf16=1", "gemm_bf16=nan", "gemm_bf16=1e9", "gemm_bf16=-5"])
def test_a_limit_that_no_or_every_node_meets_is_no_pass(report, limit: str) -> None:
    code, out, _ = report("merge", "good", "--expect-nodes", "2", "--device", "cuda", "--gpus", "2", "--limit", limit)
    assert code != 0 and "limits.gemm_bf16 is" in out


def test_a_result_that_cannot_be_written_is_no_verdict(report, start, tmp_path: Path) -> None:
    program = start("-c", NO_TORCH, "merge", tmp_path / "good", "--expect-nodes", "2", "--json", "/nowhere/fleet.json")
    assert program.wait() == 2 and "/nowhere/fleet.json" in program.output


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("checks/1/measurements/0/unit", "GFLOP/s", "n1 cuda:0 compute gemm: TFLOP/s before, GFLOP/s after"),
        ("facts/gpu_models", ["NVIDIA H200"] * 2, "n1 cuda:0 compute gemm: NVIDIA H100 80GB HBM3 before, NVIDIA H200"),
    ],
)
def test_diff_compares_no_numbers_of_other_units_or_models(
    report, tmp_path: Path, path: str, value: object, words: str
) -> None:
    later(tmp_path, n2=(100.0, 100.0))
    (tmp_path / "later/n1.json").write_text(json.dumps(changed(node_report("n1"), path, value)))
    code, out, _ = report("diff", "plain", "later")
    assert code == 3 and words in out, out


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({}, {"level": "full"}, "n1: not compared: level quick before, full after"),
        ({"device": "cpu"}, {}, "n1: not compared: device cpu before, cuda after"),
        ({"injected": "slow-gpu"}, {}, "n1: not compared: the fault slow-gpu was injected before"),
        ({}, {"injected": "slow-gpu"}, "n1: not compared: the fault slow-gpu was injected after"),
        ({"gpus": 3}, {}, "n1: 2 of 3 GPUs before"),
        ({}, {"gpus": 3}, "n1: 2 of 3 GPUs after"),
    ],
)
def test_diff_of_runs_that_cannot_be_compared_is_incomplete(
    report, tmp_path: Path, before: dict, after: dict, words: str
) -> None:
    for folder, changes in (("before", before), ("after", after)):
        write(tmp_path / folder / "n1.json", changes)
        write(tmp_path / folder / "n2.json", {})
    code, out, _ = report("diff", "before", "after")
    assert code == 3 and words in out, out


def write(path: Path, changes: dict) -> None:
    """A report with these changes; `gpus` is the expected number."""
    changed = node_report(path.stem, **{key: value for key, value in changes.items() if key != "gpus"})
    changed["coverage"]["gpus_expected"] = changes.get("gpus", 2)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(changed))


@pytest.mark.parametrize("form", ["before", "before.json"])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"level": "full"}, "level full before, quick after"),
        ({"injected": "slow-gpu"}, "the fault slow-gpu was injected there"),
        ({"verdict": "FAIL", "reason": "bad"}, "it is FAIL there"),
    ],
)
def test_a_baseline_that_is_no_measure_is_named(report, tmp_path: Path, form: str, changes: dict, words: str) -> None:
    write(tmp_path / "before/n1.json", changes)
    write(tmp_path / "before/n2.json", {})
    report("merge", "before", "--json", "before.json")
    code, out, _ = report("merge", "plain", "--expect-nodes", "2", "--baseline", form, "--json", "-")
    found = [each for each in json.loads(out)["findings"] if each["found_by"] == "baseline"]
    assert code == 3 and [each["node"] for each in found] == ["n1"] and words in found[0]["reason"]


@pytest.mark.parametrize("value", [-5.0, 0.0, float("nan"), float("inf"), 2e9])
def test_a_number_that_nothing_can_have_hides_no_loss(report, tmp_path: Path, value: float) -> None:
    report("merge", "good", "--json", "before.json")
    before = json.loads((tmp_path / "before.json").read_text())
    (gemm,) = [d for d in before["distributions"] if d["name"] == "gemm_bf16"]
    gemm["points"][0]["value"] = value
    (tmp_path / "before.json").write_text(json.dumps(before))
    for files in (["before.json", "good"], ["good", "before.json"]):
        code, out, _ = report("diff", *files)
        assert code == 3 and "not compared: n1 cuda:0 compute gemm_bf16: " in out, out
    code, out, _ = report("merge", "good", "--expect-nodes", "2", "--baseline", "before.json")
    assert code == 3 and "gemm_bf16 is not compared with the baseline: before, it is" in " ".join(out.split())


@pytest.mark.parametrize(
    ("path", "value"),
    [("distributions", [{}]), ("nodes", 5), ("distributions/0/points/0/value", None), ("nodes/0/gpus_seen", "2")],
)
def test_a_damaged_fleet_report_is_refused(report, tmp_path: Path, path: str, value: object) -> None:
    report("merge", "good", "--json", "before.json")
    found = changed(json.loads((tmp_path / "before.json").read_text()), path, value)
    (tmp_path / "before.json").write_text(json.dumps(found))
    code, _, err = report("diff", "before.json", "good")
    assert code == 2 and "before.json: damaged" in err


def test_diff_is_incomplete_if_numbers_are_missing_after(report, tmp_path: Path) -> None:
    later(tmp_path, n1=(100.0, 100.0))
    code, out, _ = report("diff", "plain", "later")
    assert code == 3 and "n2: only before" in out and "missing after: 2 numbers" in out


def test_diff_of_a_node_that_now_fails(report, tmp_path: Path) -> None:
    (tmp_path / "before.json").write_text(json.dumps(node_report("n3")))
    code, out, _ = report("diff", "before.json", "bad.json")
    assert code == 1 and "n3: PASS before, FAIL after" in out


def test_diff_of_an_unreadable_run_is_refused(report) -> None:
    code, _, err = report("diff", "good", "absent")
    assert code == 2 and "absent" in err


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
