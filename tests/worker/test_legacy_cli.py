"""The old commands, and their defects, each shown to be gone.

| the old suite                                                   | here                                               |
|-----------------------------------------------------------------|----------------------------------------------------|
| reduces one tensor in place, compares with the first sum        | right with two ranks and four rounds               |
| a node without a GPU, or with 7 of 8, is a success              | exit code 3, and the report says so                |
| a skip is written under the name of a result                    | under its own name                                 |
| a part that fails ends the run                                  | every part runs                                    |
| the report says true, the numbers are in the log only           | the report has the numbers                         |

What the manifests did wrong (restarts for ever, node counts from DNS) is tested with the charts.
"""

import dataclasses
import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from gpuworker.accept import legacy_cli
from gpuworker.accept.publish import write_json
from gpuworker.judgement.judge import Judged
from gpuworker.judgement.report import Report, Requested
from gpuworker.judgement.verdict import Check

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parents[2] / "worker" / "app" / "src"


def test_everything_passes_on_a_healthy_node(start, tmp_path):
    program = start(
        SCRIPTS / "run_all_tests.py", "--quick", "--device", "cpu", "--report-dir", tmp_path
    )
    assert program.wait(300) == 0, program.output
    said = program.stdout.read_text()
    assert re.search(
        r'^\[SUMMARY\] .*"gpu_tests rc=0; ddp_tests rc=0; ddp_train rc=0"$', said, re.MULTILINE
    )
    for tag in ("[ENV]", "[COMPUTE]", "[TRAIN]", "[DDP]", "[RESULT]"):
        assert re.search(rf"^{re.escape(tag)} ", said, re.MULTILINE), tag

    summary = json.loads((tmp_path / "summary.json").read_text())
    assert set(summary) == {"env", "gpu_tests", "ddp_tests", "ddp_train"}
    assert set(summary["env"]) == {
        "python",
        "torch",
        "cuda_available",
        "cuda_device_count",
        "nvidia_smi",
    }
    assert "[COMPUTE]" in summary["gpu_tests"]["stdout"]
    gpu = json.loads((tmp_path / "gpu_tests_result.json").read_text())
    assert (gpu["compute"], gpu["training"], gpu["verdict"]) == (True, True, "PASS")
    assert "gemm_fp32" in {measurement["name"] for measurement in gpu["measurements"]}
    ddp = json.loads((tmp_path / "ddp_tests_result.json").read_text())
    assert (ddp["world"], ddp["iters"], ddp["ok"]) == (2, 4, True) and ddp["time"] > 0
    training = json.loads((tmp_path / "ddp_training_result.json").read_text())
    assert (training["world"], training["epochs"], training["batch_size"], training["steps"]) == (
        2,
        2,
        256,
        32,
    )
    assert training["improved"] is True and training["loss_end"] < training["loss_start"]


@pytest.mark.parametrize(
    ("script", "skipped"),
    [
        ("gpu_tests", "gpu_tests_skipped.json"),
        ("ddp_tests", "ddp_tests_skipped.json"),
        ("run_all_tests", "mine.json"),
    ],
)
def test_a_node_without_gpus_is_no_success(monkeypatch, tmp_path, capsys, script, skipped):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(
        sys, "argv", [script, "--report-dir", str(tmp_path), "--report-name", "mine.json"]
    )
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(SCRIPTS / f"{script}.py"))
    assert end.value.code == 3
    assert [path.name for path in tmp_path.iterdir()] == [skipped], (
        "a skip never looks like a result"
    )
    report = json.loads((tmp_path / skipped).read_text())
    assert (report["skipped"], report["reason"]) == (True, "no_gpu")
    assert "nothing was tested" in capsys.readouterr().out


def test_seven_of_eight_gpus_fail(monkeypatch):
    monkeypatch.setenv("GPUS_PER_NODE", "8")
    assert legacy_cli.gpus_expected({"cuda_device_count": 7}) == 8, (
        "accept-node is told, and compares"
    )
    monkeypatch.setenv("GPUS_PER_NODE", "")
    assert legacy_cli.gpus_expected({"cuda_device_count": 7}) == 7


def test_every_part_runs_whatever_became_of_the_others(monkeypatch, tmp_path, capsys):
    codes = iter([2, 0, 3])
    monkeypatch.setattr(
        legacy_cli, "run", lambda _: {"returncode": next(codes), "stdout": "", "stderr": ""}
    )
    monkeypatch.setattr(
        sys, "argv", ["run_all_tests.py", "--device", "cpu", "--report-dir", str(tmp_path)]
    )
    with pytest.raises(SystemExit) as end:
        legacy_cli.run_all_tests()
    assert end.value.code == 3
    assert next(codes, None) is None
    said = capsys.readouterr().out
    assert "gpu_tests rc=2; ddp_tests rc=0; ddp_train rc=3" in said
    assert re.search(
        r'^\[RESULT\] .*verdict=FAIL failed="gpu_tests, ddp_train"', said, re.MULTILINE
    )
    assert json.loads((tmp_path / "summary.json").read_text())["ddp_train"]["returncode"] == 3


@pytest.mark.parametrize(
    ("checks", "code", "failures"),
    [
        ([("environment", "PASS"), ("compute", "FAIL"), ("training", "PASS")], 2, ["compute: why"]),
        ([("environment", "PASS"), ("compute", "PASS")], 0, ["training: did not run"]),
        ([], 3, ["environment: did not run", "compute: did not run", "training: did not run"]),
    ],
)
def test_a_failure_says_what_failed(monkeypatch, tmp_path, checks, code, failures):
    def accept_node(command):
        folder = Path(command[-1].removeprefix("--report-dir="))
        report = Report("n", "p", "1", Requested("cpu", 0, "quick"), "2026-01-05T10:00:00+00:00")
        write_json(folder / "report.json", dataclasses.asdict(report))
        return type("Done", (), {"returncode": {2: 1}.get(code, code)})

    monkeypatch.setattr(legacy_cli.subprocess, "run", accept_node)
    monkeypatch.setattr(
        legacy_cli, "judge", lambda report: Judged(report, [Check(*each, "why") for each in checks])
    )
    monkeypatch.setattr(
        sys, "argv", ["gpu_tests.py", "--quick", "--device", "cpu", "--report-dir", str(tmp_path)]
    )
    with pytest.raises(SystemExit) as end:
        legacy_cli.gpu_tests()
    assert end.value.code == (code or 3), "what did not run did not pass"
    assert json.loads((tmp_path / "gpu_tests_result.json").read_text())["failures"] == failures
