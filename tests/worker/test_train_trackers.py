"""What a resumed run reports to its trackers: also what an earlier attempt recorded and may not have sent."""

from __future__ import annotations

from gpuworker.train import train_smoke
from gpuworker.train.trackers import Tracker


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
