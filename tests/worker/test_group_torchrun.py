"""A group's task whose `torchrun` is ddp-launch: scripts as they are, and how the task ends."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.helpers.chart_programs import mount
from tests.helpers.group_agents import Group, Rank, codes
from tests.helpers.processes import free_port

pytestmark = pytest.mark.slow
PROGRAM = """
import os, sys, time, signal
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
print(f"[STEP] world={int(value)}", flush=True)
if os.environ.get("FAULT"):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    print("waits", flush=True)
    time.sleep(600)
dist.destroy_process_group()
"""
FLAGS = "--nnodes=$NNODES --nproc_per_node=1 --node_rank=$NODE_RANK --master_addr=$MASTER_ADDR"


class Task:
    """A group of one task with two ranks, each with the programs of the chart."""

    def __init__(self, folder: Path):
        self.group = Group(folder)
        self.group.write_plan({"t": {"numNodes": 2}})
        self.port = free_port(2)
        self.program = folder / "program.py"
        self.program.write_text(PROGRAM)

    def start(self, number: int, run: str = "", **settings: object) -> Rank:
        rank = self.group.new_rank(f"t-{number}").publish_name().start_agent()
        mount("job-group", rank.root / "programs")
        contract = {
            "NNODES": 2, "NODE_RANK": number, "NPROC_PER_NODE": 1, "NODE_NAME": f"n{number}",
            "MASTER_ADDR": "localhost", "MASTER_PORT": self.port, "RUN_ID": f"run-{self.port}",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": 1, "GLOO_SOCKET_IFNAME": "lo", "GPU_CHARTS_IN_PLACE": "",
            "GPU_CHARTS_LAUNCHER": "--join-timeout=60 --grace-period=15",
        }  # fmt: skip
        return rank.start_task(
            run or f"exec torchrun {FLAGS} {self.program}", **contract | settings
        )


@pytest.fixture
def task(tmp_path):
    task = Task(tmp_path)
    yield task
    for rank in task.group.ranks:
        rank.lose()


def test_the_ranks_of_a_task_form_one_world_twice_in_a_row(task):
    ranks = [
        task.start(number, f"torchrun {FLAGS} {task.program}; torchrun {task.program}")
        for number in (0, 1)
    ]
    assert codes(*ranks) == [0, 0], ranks[0].output() + ranks[1].output()
    for rank in ranks:
        assert rank.output().count("[STEP] world=2") == 2
        assert len(re.findall(r"^\[DONE\] .*world=2", rank.output(), re.MULTILINE)) == 2


@pytest.mark.parametrize("recovers", [False, True])
def test_a_world_that_saves_because_one_pod_is_stopped_counts_as_stopped_on_all_nodes(
    task, recovers
):
    """143 makes the Job replace the pod without counting a failure; a listed code restarts the group."""
    more = {"GPU_CHARTS_RECOVER_CODES": "75"} if recovers else {"GPU_CHARTS_END_LAST": "yes"}
    ranks = [task.start(number, FAULT="stop", **more) for number in (0, 1)]
    for rank in ranks:
        rank.until_output("waits\n")
    ranks[1].main.send_signal(signal.SIGTERM)
    assert codes(*ranks) == [75 if recovers else 143, 143]
    assert recovers or "stopped step=run exit_code=75" in ranks[0].output()


@pytest.mark.parametrize(
    "way",
    [
        "torchrun --standalone",
        f"{sys.executable} -m torch.distributed.run {FLAGS}",
        f"set -o pipefail; torchrun {FLAGS}",
    ],
)
def test_every_way_to_torchrun_is_the_launcher(task, way):
    end = " | cat" if "pipefail" in way else ""
    ranks = [task.start(number, f"{way} {task.program}{end}") for number in (0, 1)]
    assert codes(*ranks) == [0, 0], ranks[0].output() + ranks[1].output()
    world = 1 if "standalone" in way else 2
    assert all(
        f"[STEP] world={world}" in rank.output() and "[DONE]" in rank.output() for rank in ranks
    )
