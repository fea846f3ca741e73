"""What a run keeps: saves by time, space for them, and saves that fail."""

from __future__ import annotations

import errno
import itertools
import os
import re
import signal
import subprocess

import pytest

from gpuworker.train import optimizer, run_checkpoints, train_smoke, volume
from gpuworker.train.checkpoint import Checkpointer
from tests.helpers.processes import until
from tests.helpers.train_worlds import SMOKE, Ranks, checkpoints, train


def main(*words: object) -> int:
    return train_smoke.main([str(word) for word in ("--device", "cpu", *words)])


def test_a_run_saves_by_time_and_once_early_by_default(tmp_path, monkeypatch):
    """With a clock that is 20 s later at every look: early, and then every 15 minutes."""
    now, saved = iter(range(0, 10**6, 20)), []
    monkeypatch.setattr(run_checkpoints, "clock", lambda: next(now))
    commit = Checkpointer.commit

    def record(self, partial, name, order, *rest):
        saved.append(order[0])
        return commit(self, partial, name, order, *rest)

    monkeypatch.setattr(Checkpointer, "commit", record)
    assert main("--output", tmp_path, "--epochs", 1, "--batch", 16, "--samples", 2560) == 0
    assert saved[0] in (3, 4), saved  # a minute after the start
    assert [later - step for step, later in itertools.pairwise(saved[:-1])] == [45] * 3, saved


def test_all_ranks_save_in_the_step_in_which_rank_0_finds_it_due(tmp_path):
    ranks = train(tmp_path, "--save-every-minutes", 0.0002, "--keep", 99, "--epochs", 12, module=SMOKE, world=2)
    assert len([name for name in checkpoints(tmp_path) if "step" in name]) > 2, ranks.output


def test_no_saves_by_time_if_they_are_turned_off(tmp_path, monkeypatch):
    now = iter(range(0, 10**7, 2000))
    monkeypatch.setattr(run_checkpoints, "clock", lambda: next(now))
    assert main("--output", tmp_path, "--save-every-minutes", 0) == 0
    assert checkpoints(tmp_path) == ["epoch-0001", "epoch-0002"]


def test_a_run_without_output_logs_that_nothing_is_kept_before_it_trains(capfd):
    assert main("--epochs", 2) == 0
    output = capfd.readouterr().out
    assert 0 < output.index("--output") < output.index("[STEP]")


def test_a_run_is_refused_before_its_first_step_if_its_checkpoints_do_not_fit(tmp_path, monkeypatch, capfd):
    usage = volume.shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(volume.shutil, "disk_usage", lambda path: usage)
    assert main("--output", tmp_path, "--features", 2048) == 2
    output = capfd.readouterr().out
    assert "[STEP]" not in output and "free" in output and "--keep" in output
    assert main("--output", tmp_path, "--features", 16) == 0


@pytest.mark.parametrize("free, size", [(600_000, 300_000), (3 << 20, 1 << 20), (100, 90), (5 << 40, 3 << 40)])
def test_the_sizes_of_a_volume_that_is_too_small_are_not_rounded_away(tmp_path, monkeypatch, free, size):
    usage = volume.shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr(volume.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(volume.SpaceError) as error:
        volume.require_space(tmp_path, 2, size)
    numbers = re.findall(r"([\d.]+) (bytes|[KMGT]iB)", str(error.value))
    units = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
    values = [float(number) * units[unit] for number, unit in numbers]
    assert values == [pytest.approx(each, rel=0.01) for each in (free, 4 * size, size)] and values[0] < values[1]


def test_a_volume_that_does_not_know_its_size_is_used(tmp_path, monkeypatch):
    usage = volume.shutil.disk_usage(tmp_path)._replace(total=0, free=0)
    monkeypatch.setattr(volume.shutil, "disk_usage", lambda path: usage)
    assert main("--output", tmp_path) == 0


def fail_saves(monkeypatch, which) -> list[str]:
    """Saves whose number is in `which` fail as torch.save does on a full disk."""
    names, save = [], optimizer.save

    def fail(*rest):
        names.append("save")
        if len(names) in which:
            raise RuntimeError("[enforce fail at inline_container.cc:671] . unexpected pos 398592 vs 398480")
        save(*rest)

    def full(folder, rank):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    monkeypatch.setattr(optimizer, "save", fail)
    monkeypatch.setattr(volume, "probe", full)
    return names


def test_training_goes_on_after_a_save_on_a_full_disk(tmp_path, monkeypatch, capfd):
    fail_saves(monkeypatch, {2})
    assert main("--output", tmp_path, "--save-every", 3, "--keep", 99) == 0
    assert "No space left on device" in capfd.readouterr().out
    assert "epoch-0001-step-00000006" not in checkpoints(tmp_path) and "epoch-0002" in checkpoints(tmp_path)
    assert not list((tmp_path / "run").glob(".partial-*"))


def test_a_last_save_on_a_full_disk_is_a_failure_with_the_name_of_its_cause(tmp_path, monkeypatch, capfd):
    fail_saves(monkeypatch, range(2, 99))
    assert main("--output", tmp_path) == 1
    output = capfd.readouterr().out
    assert "[FATAL]" in output and "[Errno 28] No space left on device" in output
    assert checkpoints(tmp_path) == ["epoch-0001"]


def test_an_error_of_the_program_in_a_save_is_not_blamed_on_the_disk(tmp_path, monkeypatch):
    fail_saves(monkeypatch, {1})
    monkeypatch.setattr(volume, "probe", lambda folder, rank: None)
    with pytest.raises(RuntimeError, match="inline_container"):
        main("--output", tmp_path)


@pytest.fixture
def small_volume(tmp_path):
    folder = tmp_path / "volume"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(folder)], capture_output=True).returncode:
        pytest.skip("this user cannot mount a volume")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_volume_that_fills_up_while_two_ranks_train_is_named(small_volume):
    """Something else fills the volume after the start."""
    folder = small_volume / "out"
    folder.mkdir()
    words = ("--output", folder, "--features", 600, "--save-every", 5, "--epochs", 30000, "--log-every", 1)
    ranks = Ranks(SMOKE, ("--device", "cpu", *words), 2, small_volume.parent)
    ranks.wait_for_output("saved=")
    with open(small_volume / "other", "wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(bytes(4096))
    ranks.wait_for_output("save_failed=")
    (small_volume / "other").unlink()
    position = len(ranks.output)
    until(lambda: "saved=" in ranks.output[position:] or ranks.processes[0].exitcode, "a later save succeeds")
    ranks.signal(signal.SIGTERM, [0])
    assert set(ranks.wait()) == {75}, ranks.all_output()


def test_an_output_folder_that_cannot_be_written_is_refused_at_the_start(tmp_path, capfd):
    (tmp_path / "file").write_text("")
    assert main("--output", tmp_path / "file") == 2
    assert "[STEP]" not in capfd.readouterr().out
