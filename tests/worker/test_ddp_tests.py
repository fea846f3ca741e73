"""ddp-tests under torchrun. Wrong sums are in test_checks.py, where they become a verdict."""

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


def test_without_torchrun_the_command_is_told(monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(sys, "argv", ["ddp-tests", "--device", "cpu"])
    with pytest.raises(SystemExit) as end:
        ddp_tests.main()
    assert end.value.code == 2
    assert "torchrun --standalone --nproc-per-node=2 -m gpuworker.accept.ddp_tests" in capsys.readouterr().err
