"""ddp-tests under torchrun: the all-reduce, tests by name, exit codes."""

import json
import sys

import pytest

from gpuworker.accept import ddp_tests

pytestmark = pytest.mark.slow


def test_two_healthy_ranks_are_right_in_every_round(start, tmp_path):
    """Reducing in place without filling anew makes every round after the first wrong: it must not come back."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    options = ("--device", "cpu", "--report-dir", tmp_path, "--numel", "1000", "--train-smoke")
    program = start(*torchrun, "-m", "gpuworker.accept.ddp_tests", *options)
    assert program.wait() == 0, program.output
    result = json.loads((tmp_path / "ddp_tests_result.json").read_text())
    expected = {"world": 2, "nodes": 1, "iters": 4, "numel": 1000, "wrong_iters": 0, "ok": True}
    assert {key: result[key] for key in expected} == expected
    assert result["busbw_gbps"] == pytest.approx(1000 * 4 * 4 / result["time_s"] / 1e9)
    smoke = json.loads((tmp_path / "ddp_training_result.json").read_text())
    assert (smoke["world"], smoke["improved"]) == (2, True)
    assert smoke["loss_end"] < 0.8 * smoke["loss_start"]
    lines = program.stdout.read_text().splitlines()
    assert sorted(line.split()[0] for line in lines) == ["[DDP]", "[DDP]", "[TRAIN]", "[TRAIN]"]


def test_a_wrong_element_on_one_rank_fails_every_rank(start, tmp_path):
    """By the all-reduce, in every round, and not only on the rank that sees it."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    options = ("--device", "cpu", "--report-dir", tmp_path, "--numel", "1000", "--inject", "wrong-element")
    program = start(*torchrun, "-m", "gpuworker.accept.ddp_tests", *options)
    assert program.wait() == 1, program.output
    assert "exitcode  : 3" in program.output, "torchrun gives 1 for any of them"
    result = json.loads((tmp_path / "ddp_tests_result.json").read_text())
    assert (result["wrong_iters"], result["ok"]) == (5, False)
    assert program.output.count("ok=false") == 2, "every rank must know of the wrong one"


def test_tests_by_name_are_judged_and_reported(start, tmp_path):
    """One fault among them: the storage is good, the sweep is not, and the program fails."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    named = ("--sweep", "--stragglers", "--correctness", "--locate", "--storage", tmp_path)
    options = ("--device", "cpu", "--report-dir", tmp_path, "--inject", "wrong-element", "--inject-rank", "0")
    program = start(*torchrun, "-m", "gpuworker.accept.ddp_tests", *named, *options)
    assert program.wait() == 1, program.output
    verdicts = {
        name: json.loads((tmp_path / f"ddp_{name}_result.json").read_text())["verdict"]
        for name in ("sweep", "stragglers", "correctness", "locate", "storage")
    }
    assert verdicts == {
        "sweep": "FAIL", "stragglers": "PASS", "correctness": "PASS", "locate": "PASS", "storage": "PASS"
    }  # fmt: skip
    assert "test=sweep verdict=FAIL" in program.output
    assert "rank 0 (node " in program.output
    assert not (tmp_path / "ddp_tests_result.json").exists(), "tests by name run instead of the all-reduce"


def test_without_torchrun_the_command_is_told(monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(sys, "argv", ["ddp-tests", "--device", "cpu"])
    with pytest.raises(SystemExit) as end:
        ddp_tests.main()
    assert end.value.code == 2
    assert "torchrun --standalone --nproc-per-node=2 -m gpuworker.accept.ddp_tests" in capsys.readouterr().err
