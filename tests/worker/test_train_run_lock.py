"""Two trainings of one run never write at the same time: the later one waits for the earlier one's end."""

from __future__ import annotations

import os
import signal

import pytest

from gpuworker.train import run_lock
from tests.helpers.train_worlds import SMOKE, Ranks, checkpoints

LONG = ("--device", "cpu", "--epochs", 3000, "--log-every", 1, "--output")


def test_a_new_start_waits_until_the_old_one_has_saved_and_continues_there(tmp_path):
    old = Ranks(SMOKE, (*LONG, tmp_path), 0, tmp_path)
    old.wait_for_output("step=20/")
    new = Ranks(SMOKE, (*LONG, tmp_path), 0, tmp_path)
    new.wait_for_output("waiting_for=")
    os.kill(old.processes[0].pid, signal.SIGTERM)
    assert old.wait() == [75], old.output
    new.wait_for_output("step=")
    (name,) = [word for word in new.output.split() if word.startswith("resumed=")]
    assert f"checkpoint={name.removeprefix('resumed=')}" in old.output and name != "resumed=no"
    os.kill(new.processes[0].pid, signal.SIGTERM)
    assert new.wait() == [75], new.output
    assert len(checkpoints(tmp_path)) >= 2


def test_a_killed_training_leaves_no_lock(tmp_path):
    old = Ranks(SMOKE, (*LONG, tmp_path), 0, tmp_path)
    old.wait_for_output("step=2/")
    old.processes[0].kill()
    old.wait()
    with run_lock.run_lock(tmp_path / "run", wait_s=0):
        pass


def test_a_training_that_does_not_end_is_reported(tmp_path):
    with run_lock.run_lock(tmp_path / "run"):
        waiting = run_lock.run_lock(tmp_path / "run", 0.3)
        with pytest.raises(run_lock.RunLockedError, match="runName"), waiting:
            pass


def test_a_volume_without_locks_is_used_without_one(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(run_lock.fcntl, "flock", unsupported)
    with run_lock.run_lock(tmp_path / "run", wait_s=0):
        pass
