"""What an agent keeps on disks, when a file there is damaged, hostile, or has no room."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from gpuworker.group import task_log
from gpuworker.group.group_state import GroupState
from gpuworker.group.spool import OUTPUT, Spool
from gpuworker.group.state_store import StateFolder
from gpuworker.group.task_log import TaskLog
from gpuworker.runtime.json_lines import encode


def damage(folder: Path, kind: str) -> None:
    path = folder / "b-0.json"
    if kind == "directory":
        path.mkdir()
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "dangling":
        path.symlink_to("nowhere")
    else:
        path.write_bytes({"empty": b"", "cut": encode(GroupState(done=["b-0"]))[:9], "noise": os.urandom(99)}[kind])


@pytest.mark.parametrize("kind", ["directory", "endless", "pipe", "dangling", "empty", "cut", "noise"])
def test_a_file_that_cannot_be_read_costs_its_own_state_only(tmp_path, kind):
    StateFolder(tmp_path, "a-0").save(GroupState(released=True, done=["a-0"]))
    damage(tmp_path, kind)
    assert StateFolder(tmp_path, "a-0").load() == [GroupState(released=True, done=["a-0"])]


@pytest.fixture
def disk(tmp_path):
    """A disk of 100 KiB."""
    if os.geteuid():
        pytest.skip("needs root to mount a disk")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


def test_a_spool_that_has_filled_the_disk_is_bounded_and_the_agent_lives(disk, monkeypatch):
    """The volume of the log hangs meanwhile, so nothing was ever copied."""
    monkeypatch.setattr(task_log, "BACKLOG_BYTES", 50_000)
    monkeypatch.setattr(TaskLog, "_run", lambda self: None)
    log = TaskLog(disk, disk / "kept", "a-0", print)
    log.spool = Spool(disk)
    with (disk / OUTPUT).open("ab", buffering=0) as output, pytest.raises(OSError, match="No space"):
        while True:
            output.write(bytes(4096))
    assert log.spool.size > task_log.BACKLOG_BYTES

    async def watch() -> None:
        await asyncio.wait_for(log.watch(), 1.5)

    with pytest.raises(asyncio.TimeoutError):  # it would go on for ever
        asyncio.run(watch())
    assert log.spool.skip_to > 0
    assert Spool(disk).skip_to == log.spool.skip_to, "also after a restart of the agent"
