"""accept-node as a pod runs it: one report, one verdict, one exit code, once a run."""

import json
import re
import sys
from pathlib import Path

import jsonschema
import pytest

from gpuworker.accept import node

pytestmark = pytest.mark.slow

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "report.schema.json").read_text())


@pytest.fixture
def accept(start, tmp_path, termination_log):
    """Runs accept-node in a process of its own; gives the exit code, the output, and the report, checked."""

    def run(*arguments: object) -> tuple[int, str, dict]:
        program = start("-m", "gpuworker.accept.node", "--report-dir", tmp_path, *arguments, NODE_NAME="gpu-12")
        code = program.wait()
        return code, program.output, published(tmp_path)

    return run


@pytest.fixture
def accept_here(monkeypatch, tmp_path, termination_log):
    """The same in this process, for starts that come to no check."""

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["accept-node", "--report-dir", str(tmp_path), *arguments])
        monkeypatch.setattr(node, "run_check", lambda check, *_: pytest.fail(f"the check {check.name} ran"))
        with pytest.raises(SystemExit) as end:
            node.main()
        return end.value.code

    return run


def published(folder: Path) -> dict:
    report = json.loads((folder / "report.json").read_text())
    jsonschema.Draft7Validator(SCHEMA).validate(report)
    return report


def tags(output: str) -> list[str]:
    """The tags in the order in which they first appear."""
    return list(dict.fromkeys(re.findall(r"^\[([A-Z]+)\] node=gpu-12 ", output, re.MULTILINE)))


def test_a_rehearsal_passes_and_is_not_run_again(accept, accept_here, tmp_path, termination_log, capsys):
    code, output, report = accept("--device", "cpu", "--run-id", "1")
    assert code == 0, output
    assert (report["verdict"], report["reason"], report["rehearsal"]) == ("PASS", "", True)
    assert (report["node"], report["run_id"], report["device"]) == ("gpu-12", "1", "cpu")
    assert [check["name"] for check in report["checks"]] == ["environment", "compute", "training", "collectives"]
    measured = {measurement["name"] for check in report["checks"] for measurement in check["measurements"]}
    assert {"gemm_fp32", "loss_drop", "allreduce_busbw"} <= measured
    assert tags(output) == ["ENV", "COMPUTE", "TRAIN", "DDP", "RESULT"]
    assert termination_log.read_text().startswith("PASS (CPU rehearsal): gemm_fp32 cpu ")

    # Kubernetes starts an init container again after a reboot of the node: the verdict stands.
    assert accept_here("--device", "cpu", "--run-id", "1") == 0
    assert "this run has a report already" in capsys.readouterr().out
    assert published(tmp_path) == report


def test_a_new_run_tests_again_and_a_missed_limit_fails(accept, accept_here, tmp_path, termination_log):
    (tmp_path / "started").write_text("1")
    (tmp_path / "report.json").write_text('{"run_id": "1", "verdict": "PASS"}')
    code, output, report = accept("--device", "cpu", "--run-id", "2", "--min-compute-gflops", "1e9")
    assert code == 1, output
    assert (report["verdict"], report["run_id"]) == ("FAIL", "2")
    assert re.fullmatch(
        r"compute: cpu: gemm_fp32 \S+ TFLOP/s is below the limit of 1e\+06 \(limits.gemm_fp32\)", report["reason"]
    )
    assert [check["verdict"] for check in report["checks"]] == ["PASS", "FAIL", "PASS", "PASS"]
    assert termination_log.read_text().startswith("FAIL (CPU rehearsal): compute: cpu: ")

    assert accept_here("--device", "cpu", "--run-id", "2") == 1
    assert accept_here("--device", "cpu", "--run-id", "2", "--exit-zero") == 0
    assert published(tmp_path) == report


def test_a_node_without_its_gpus_never_passes(accept):
    code, output, report = accept("--device", "cuda", "--gpus", "2", "--exit-zero")
    assert code == 0, "--exit-zero says that there is a report"
    assert (report["verdict"], report["rehearsal"]) == ("INCOMPLETE", False)
    assert "environment: torch sees no GPU, 2 expected" in report["reason"]
    assert "PASS" not in [check["verdict"] for check in report["checks"]]
    (collectives,) = [check for check in report["checks"] if check["name"] == "collectives"]
    assert re.match(r"torchrun exited 1: \w*Error: .*(NVIDIA|CUDA)", collectives["reason"]), "the cause, not the ruler"
    assert tags(output) == ["ENV", "COMPUTE", "TRAIN", "DDP", "RESULT"]


@pytest.mark.parametrize(("options", "code"), [([], 3), (["--exit-zero"], 0)])
def test_a_start_after_a_killed_one_is_incomplete(accept_here, tmp_path, termination_log, options, code):
    (tmp_path / "started").write_text("7")
    assert accept_here("--device", "cpu", "--run-id", "7", *options) == code
    report = published(tmp_path)
    assert report["verdict"] == "INCOMPLETE"
    assert report["reason"] == "start: an earlier attempt of this run was killed (out of memory?)"
    assert termination_log.read_text().startswith("INCOMPLETE (CPU rehearsal): start: an earlier attempt")


def test_a_broken_report_is_no_report(accept_here, tmp_path):
    (tmp_path / "started").write_text("1")
    (tmp_path / "report.json").write_text("")
    assert accept_here("--device", "cpu") == 3
    assert published(tmp_path)["verdict"] == "INCOMPLETE"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cuda"], "say how many GPUs this node must show"),
        ([], "say how many GPUs this node must show"),
        (["--device", "cpu", "--gpus", "2"], "--gpus makes no sense with --device cpu"),
    ],
)
def test_a_plan_that_proves_nothing_is_refused(accept_here, capsys, tmp_path, arguments, message):
    assert accept_here(*arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "report.json").exists()
