"""The folder that agent and task share, after the task has put something else there: no hang, no
link out of it.
"""

import asyncio
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from gpuworker.group.entry_pipes import HISTORY, EntryPipes
from gpuworker.group.protocol import Pipe
from tests.helpers.hostile_files import KINDS, command
from tests.helpers.processes import until

SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]
STOPS = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
FILES = (HISTORY, "reply", "end_reason", "node_ips", "a-0.json", "events", "end", "ack")


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "outside").write_text("result 0\n")
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


def test_a_flood_of_events_in_the_history_hides_none_of_the_pipe(folder):
    (folder / HISTORY).write_text("".join(f"started {number}\n" for number in range(99_999)))
    pipes = EntryPipes(folder)

    async def last_event():
        count = 0
        async for line in pipes.events():
            if line == "result 7":
                break
            count += 1
            if count == 1:
                pipes.send(Pipe.EVENTS, "result 7")
        return count, line

    count, line = asyncio.run(asyncio.wait_for(last_event(), 20))
    assert line == "result 7" and count < 100


def test_the_pipes_of_a_task_that_makes_new_ones_without_end_need_few_descriptors(
    folder,
):
    pipes, before = EntryPipes(folder), len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        (folder / "ack").unlink()
        os.mkfifo(folder / "ack")
        pipes.send(Pipe.ACK, "ack")
    assert len(os.listdir("/proc/self/fd")) < before + 5


@pytest.fixture
def pair(group):
    """A group whose second rank ends when the first has failed."""
    group.write_plan({"a": {}, "b": {}}, workload="jobs")
    other = group.start_rank("b-0", STOPS)
    (group.folder / "outside").write_text("result 0\n")
    return group, other


def damage(rank, kind: str) -> str:
    return "; ".join(command(rank.root / "state" / name, kind) for name in FILES)


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [False, True], ids=["", "the agent restarts"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_task_that_replaces_all_files_ends_with_its_code_and_the_others_learn_of_it(
    pair, kind, restarts
):
    group, other = pair
    rank = group.new_rank("a-0").publish_name().start_agent()
    (rank.root / "outside").write_text("result 0\n")
    rank.start_task(
        f"{damage(rank, kind)}; touch damaged; until [ -e go ]; do sleep 0.1; done; exit 5"
    )
    until((rank.workdir / "damaged").exists, "the files are replaced")
    if restarts:
        rank.kill_agent()
        rank.start_agent()
    time.sleep(1.5)  # the agent looks each second
    rank.touch("go")
    assert rank.main.wait(60) == 5 and "exit_code=5" in rank.output()
    assert other.wait() == 1 and "stopped: failed a-0 5" in other.output()
    assert rank.sidecar.poll() is None and "Traceback" not in rank.output("agent"), rank.output(
        "agent"
    )
    assert (rank.root / "outside").read_text() == "result 0\n"


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("restart", [False, True], ids=["ends", "starts again"])
def test_a_task_that_removes_all_files_at_its_end(pair, shell, restart):
    group, other = pair
    rank = group.new_rank("a-0").publish_name().start_agent()
    again = "[ -e seen ] || { touch seen; rm -rf ../../state/*; exit 29; }; " if restart else ""
    rank.start_task(
        f"{again}echo printed; sleep 1; rm -rf ../../state/*; exit 5",
        shell=shell,
        GPU_CHARTS_RECOVER_CODES="29",
    )
    assert rank.main.wait(60) == 5
    assert "\nprinted" in rank.output()
    rank.sidecar.send_signal(signal.SIGTERM)  # the kubelet, as soon as the task has ended
    assert other.wait() == 1 and "stopped: failed a-0 5" in other.output()
    assert "removed or replaced" in rank.output("agent"), "named in the agent's log"
    assert rank.sidecar.wait(40) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_task_whose_files_were_replaced_ends_with_the_group(group, kind):
    group.write_plan({"a": {}, "b": {}}, workload="jobs")
    other = group.start_rank("b-0", "until [ -e go ]; do sleep 0.1; done; exit 6")
    rank = group.new_rank("a-0").publish_name().start_agent()
    (rank.root / "outside").write_text("done\n")
    rank.start_task(f"{damage(rank, kind)}; echo damaged; {STOPS}")
    rank.until_output("\ndamaged")
    time.sleep(1.5)  # the agent looks each second
    other.touch("go")
    assert other.wait() == 6
    assert rank.main.wait(60) == (143 if kind == "folder" else 1), (
        "the reason has no place in a folder"
    )
    assert rank.sidecar.poll() is None and "Traceback" not in rank.output("agent")
