"""The parent of a rank's program, and the launcher that it reports to, at the limits of their machine."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuworker.launch import rank_runner
from gpuworker.launch.config import parser, read_config
from gpuworker.launch.local_ranks import LocalRanks
from gpuworker.launch.protocol import NodeState
from gpuworker.launch.torchrun_process import TorchrunProcess
from tests.helpers.launchers import CONTRACT


class Exited(BaseException):
    """In place of the end of the process."""


@pytest.mark.parametrize(("code", "seen"), [(0, 0), (75, 75), (-9, 137)])
def test_a_machine_without_room_for_a_process_does_not_change_the_exit_code(monkeypatch, code, seen):
    """What the program left running still writes, and the copy that would read it cannot be started."""

    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    def end(number: int) -> None:
        raise Exited(number)

    runner = object.__new__(rank_runner.Runner)
    runner.pipe, write = os.pipe()
    runner.code = code
    monkeypatch.setattr(os, "fork", fork)
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(Exited) as ended:
        runner.finish()
    assert ended.value.args == (seen,)
    os.close(write)
    os.close(runner.pipe)


def test_a_program_ends_whose_launcher_has_ended_before_its_first_report(tmp_path, monkeypatch):
    """As at any later instant: nobody else would end the program."""
    (tmp_path / "launcher").mkdir()
    events = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    events.bind(str(tmp_path / "launcher/events"))
    events.listen()
    environ = {"GPU_CHARTS_LAUNCH_FOLDER": tmp_path / "launcher", "RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1}
    for name, value in environ.items():
        monkeypatch.setenv(name, str(value))
    runner = rank_runner.Runner()
    events.close()
    program = subprocess.Popen(["sleep", "20"], start_new_session=True)
    runner.pid = program.pid
    runner.send("start", pid=program.pid, rank=0, world=1)
    assert program.wait(60) == -signal.SIGKILL
    runner.channel.close()
    for descriptor in (runner.pipe, runner.write_end, runner.output.lock):
        os.close(descriptor)


@pytest.mark.parametrize("code", [0, 9])
def test_an_end_is_reported_although_nobody_reads_the_log(tmp_path, code):
    events = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    events.bind(str(tmp_path / "events"))
    events.listen()
    reader, log = os.pipe()
    runner, folder = str(Path(rank_runner.__file__)), {"GPU_CHARTS_LAUNCH_FOLDER": str(tmp_path)}
    world = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    program = f"import os; os.write(1, bytes(60_000)); os._exit({code})"
    full = ["sh", "-c", f"head -c 65536 /dev/zero; exec {sys.executable} -I -S {runner} --bare-python -c '{program}'"]
    process = subprocess.Popen(full, env=os.environ | folder | world, stdout=log)
    events.settimeout(30)
    channel = events.accept()[0]
    channel.settimeout(rank_runner.BLOCKED_S + 30)
    try:
        received = iter(lambda: json.loads(channel.recv(65536)), None)
        assert next(each for each in received if each["event"] == "end")["code"] == code
    finally:
        process.kill()
        process.wait()
        for each in (events, channel):
            each.close()
        os.close(reader)
        os.close(log)


@pytest.mark.parametrize("noise", [b"7", b"[]", b"\xff", b"[" * 50_000, b'{"event": "end", "local": 9}'], ids=range(5))
def test_a_launcher_that_is_busy_does_not_take_a_good_end_for_a_failure_of_torchrun(tmp_path, noise):
    """It sees that torchrun has ended before it has read that the rank has. The program wrote to the socket, too."""
    config = read_config(parser().parse_args(["--", "-m", "program"]), CONTRACT | {"NPROC_PER_NODE": "1"})

    async def busy() -> tuple[object, NodeState | None]:
        torchrun = object.__new__(TorchrunProcess)
        torchrun.config, torchrun.lines, torchrun.started = config, [], True
        torchrun.ranks = LocalRanks(config, tmp_path)
        torchrun.process, torchrun.read_lines = SimpleNamespace(poll=lambda: 0), lambda: None
        channel = rank_runner.connect(str(tmp_path))
        facts = ({"event": "start", "pid": 1, "rank": 0, "world": 32},
                 {"event": "end", "code": 0, "tail": [], "evidence": {}})  # fmt: skip
        channel.send(noise)
        for each in facts:
            channel.send(json.dumps({"local": 0, **each}).encode())
        channel.close()
        found = torchrun.failure(), torchrun.ranks.final_state()
        torchrun.ranks.close()
        return found

    assert asyncio.run(busy()) == (None, NodeState.DONE)
