"""What a resumed run reports to its trackers: also what an earlier attempt recorded and may not have sent."""

from __future__ import annotations

import pytest

from gpuworker.train import train_smoke
from gpuworker.train.metrics import LossError
from gpuworker.train.trackers import Tracker, settings
from gpuworker.train.trackers.sender_process import SenderProcess
from gpuworker.train.trainer import Trainer


def test_a_resumed_run_reports_its_history_again_with_the_same_times(tmp_path, monkeypatch):
    attempts: list[list] = []
    monkeypatch.setattr(Tracker, "start", lambda *rest: attempts.append([]))
    monkeypatch.setattr(
        Tracker,
        "log",
        lambda self, step, metrics, at=None, again=False: attempts[-1].append((again, step, at, metrics)),
    )
    for epochs in ("1", "2"):
        assert train_smoke.main(["--device", "cpu", "--output", str(tmp_path), "--epochs", epochs]) in (0, 3)
    first = [record[1:] for record in attempts[0]]
    again = [record[1:] for record in attempts[1] if record[0]]
    assert len(first) == 17 and sorted(again, key=str) == sorted(first, key=str)  # 16 steps and an evaluation
    assert [step for resent, step, *_ in attempts[1] if not resent] == [*range(17, 33), 32]


def required(monkeypatch, capfd, folder, *words: str) -> tuple[int, str]:
    """Exit code and output of a run that requires a server which does not exist."""
    monkeypatch.setattr(settings, "installed", lambda name: True)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    code = train_smoke.main(["--device", "cpu", "--output", str(folder), "--tracker-required", *words])
    output = "".join(capfd.readouterr())
    assert "Traceback" not in output, output
    return code, output


def fail_to_send(monkeypatch) -> None:
    monkeypatch.setattr(SenderProcess, "wait_started", lambda *rest: None)
    monkeypatch.setattr(SenderProcess, "has_exited", lambda self: False)
    close = SenderProcess.close
    monkeypatch.setattr(SenderProcess, "close", lambda self, seconds: close(self, 0.0) and "not everything was sent")


@pytest.mark.parametrize("timeout", ["0", "20"])
def test_a_required_tracker_that_cannot_be_reached_ends_the_run_with_one_line(tmp_path, monkeypatch, capfd, timeout):
    code, output = required(monkeypatch, capfd, tmp_path, "--tracker-timeout", timeout)
    (line,) = [each for each in output.splitlines() if "[FATAL]" in each]
    assert code == 1 and "mlflow is required and could not be reached" in line and "no reason given" not in line
    assert "[STEP]" not in output


def test_a_required_tracker_that_has_not_received_all_fails_the_run_with_one_line(tmp_path, monkeypatch, capfd):
    fail_to_send(monkeypatch)
    code, output = required(monkeypatch, capfd, tmp_path)
    (line,) = [each for each in output.splitlines() if "[FATAL]" in each]
    assert code == 1 and "mlflow: not everything was sent" in line and "[STEP]" in output


def test_a_tracker_does_not_hide_why_a_run_has_failed(tmp_path, monkeypatch, capfd):
    fail_to_send(monkeypatch)
    monkeypatch.setattr(Trainer, "train_step", diverge)
    code, output = required(monkeypatch, capfd, tmp_path)
    (line,) = [each for each in output.splitlines() if "[FATAL]" in each]
    assert code == 1 and "the weights are lost" in line and "not everything was sent" in output


def diverge(trainer: Trainer) -> None:
    raise LossError("the weights are lost", 0)
