"""A group's task whose `torchrun` is ddp-launch: the command line that it takes, and how the task ends."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from gpuworker.group.barrier import format_missing
from gpuworker.launch import build_zipapp
from gpuworker.launch.failure_causes import Verdict
from gpuworker.launch.torchrun_command import parser, to_launch_arguments
from tests.helpers import golden
from tests.helpers.group_agents import Group, Rank
from tests.helpers.processes import free_port

CONTRACT = {"NNODES": "2", "NODE_RANK": "1", "NPROC_PER_NODE": "8", "MASTER_ADDR": "t-0.g", "MASTER_PORT": "29500"}


def translated(*argv: str) -> tuple[list[str], dict[str, str]]:
    """The arguments of ddp-launch after its own settings, and what differs from the contract."""
    environ = CONTRACT | {"GPU_CHARTS_LAUNCHER": "--join-timeout=7 --grace-period=3"}
    arguments = to_launch_arguments(parser().parse_args(argv), environ)
    assert arguments[:2] == ["--join-timeout=7", "--grace-period=3"]
    return arguments[2:], {name: environ[name] for name in CONTRACT if environ[name] != CONTRACT[name]}


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--nnodes=2 --nproc_per_node=8 --node_rank=1 --master_addr=t-0.g --master_port=29500",
        "--nnodes 2 --nproc-per-node gpu --node-rank 1 --master-addr t-0.g",
        "--rdzv_id=x --rdzv_conf=timeout=9 --rdzv_endpoint=t-0.g:29500 --max_restarts=0",
    ],
)
def test_flags_that_repeat_the_contract_are_dropped(flags):
    assert translated(*flags.split(), "train.py", "--nnodes=9", "-m") == (
        ["--backend=static", "--", "train.py", "--nnodes=9", "-m"],
        {},
    )


def test_the_address_of_node_0_is_its_name_which_outlives_its_pod(monkeypatch):
    monkeypatch.setitem(CONTRACT, "SKYPILOT_NODE_IPS", "10.0.0.7\n10.0.0.8")
    monkeypatch.setitem(CONTRACT, "PET_MASTER_ADDR", "t-0.g")
    assert translated("--master_addr=10.0.0.7", "train.py")[1] == {}
    assert translated("--master_addr=10.0.0.8", "train.py")[1] == {"MASTER_ADDR": "10.0.0.8"}
    monkeypatch.setitem(CONTRACT, "MASTER_ADDR", "10.0.0.7")
    assert translated("--master_addr=10.0.0.7", "train.py")[1] == {"MASTER_ADDR": "t-0.g"}


@pytest.mark.parametrize(
    ("endpoint", "address", "port"),
    [("[fd00::7]:30000", "fd00::7", "30000"), ("fd00::7:30000", "fd00::7", "30000"), ("[fd00::7]", "fd00::7", None)],
)
def test_an_endpoint_may_have_an_address_of_ipv6(endpoint, address, port):
    """Also as a script writes it that puts a port behind the first of SKYPILOT_NODE_IPS."""
    changed = translated(f"--rdzv_endpoint={endpoint}", "train.py")[1]
    assert changed == {"MASTER_ADDR": address} | ({"MASTER_PORT": port} if port else {})


def test_flags_that_a_user_may_change_are_followed():
    flags = "--nproc_per_node=4 --master_addr=10.0.0.7 --master_port=30000 --rdzv_backend=c10d -m pkg.train a"
    assert translated(*flags.split()) == (
        ["--backend=c10d", "--", "-m", "pkg.train", "a"],
        {"NPROC_PER_NODE": "4", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "30000"},
    )


def test_the_endpoint_of_the_rendezvous_is_the_address_of_node_0():
    _, changed = translated("--rdzv_endpoint=10.0.0.7:30000", "--no-python", "train.sh")
    assert changed == {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "30000"}


REFUSED = {
    "another number of nodes": ("--nnodes=4 train.py", ("--nnodes=4", "NNODES=2")),
    "elastic nodes": ("--nnodes=1:4 train.py", ("--nnodes=1:4", "NNODES=2")),
    "another rank": ("--node_rank=0 --nnodes=3 train.py", ("--node-rank=0", "NODE_RANK=1", "--nnodes=3", "NNODES=2")),
    "restarts": ("--max_restarts=3 train.py", ("--max-restarts=3", "recovery")),
    "another rendezvous": ("--rdzv_backend=etcd-v2 train.py", ("--rdzv-backend=etcd-v2",)),
    "a flag that the launcher lacks": ("--tee=3 train.py", ("--tee=3",)),
    "no program": ("--nnodes=2", ("script",)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_contradicts_the_contract_is_refused(case):
    flags, words = REFUSED[case]
    with pytest.raises(Verdict) as refused:
        translated(*flags.split())
    assert refused.value.code == 2
    assert all(word in refused.value.reason for word in (*words, "launcher: torchrun")), refused.value.reason


def test_wording_of_a_group():
    """Missing ranks, and refused command lines of torchrun."""
    lines = [
        format_missing(["a-0", "b-1"], ["c-2"]),
        format_missing([], [], "a-0"),
    ]
    for case, (flags, _) in REFUSED.items():
        if case == "no program":
            continue  # the text is argparse's, which depends on the version of Python
        with pytest.raises(Verdict) as refused:
            translated(*flags.split())
        lines += [f"torchrun {flags}", f"  {refused.value.reason}"]
    golden.check("group.txt", "\n".join(lines) + "\n")


PROGRAM = """
import os, sys, time, signal
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
print(f"[STEP] world={int(value)}", flush=True)
fault = os.environ.get("FAULT")
if fault == "exit" and dist.get_rank() == 1:
    os._exit(9)
if fault:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    print("waits", flush=True)
    time.sleep(600)
dist.destroy_process_group()
"""
FLAGS = "--nnodes=$NNODES --nproc_per_node=1 --node_rank=$NODE_RANK --master_addr=$MASTER_ADDR"


class Task:
    """A group of one task with two ranks, each with a zipapp called torchrun."""

    def __init__(self, folder: Path):
        self.group = Group(folder)
        self.group.write_plan({"t": {"numNodes": 2}})
        self.port = free_port(2)
        self.program = folder / "program.py"
        self.program.write_text(PROGRAM)

    def start(self, number: int, run: str = "", **settings: object) -> Rank:
        rank = self.group.new_rank(f"t-{number}").publish_name().start_agent()
        (rank.root / "launcher").mkdir()
        build_zipapp.build(rank.root / "launcher/torchrun")
        contract = {"NNODES": 2, "NODE_RANK": number, "NPROC_PER_NODE": 1, "MASTER_ADDR": "localhost"}
        contract |= {"MASTER_PORT": self.port, "NODE_NAME": f"n{number}", "GLOO_SOCKET_IFNAME": "lo"}
        contract |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": 1}
        contract |= {"GPU_CHARTS_LAUNCHER": "--join-timeout=60 --grace-period=15", "GPU_CHARTS_IN_PLACE": ""}
        return rank.start_task(run or f"exec torchrun {FLAGS} {self.program}", **contract | settings)


@pytest.fixture
def task(tmp_path):
    task = Task(tmp_path)
    yield task
    for rank in task.group.ranks:
        rank.lose()


@pytest.mark.slow
def test_the_ranks_of_a_task_form_one_world_twice_in_a_row(task):
    ranks = [task.start(number, f"torchrun {FLAGS} {task.program}; torchrun {task.program}") for number in (0, 1)]
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].output() + ranks[1].output()
    for rank in ranks:
        assert rank.output().count("[STEP] world=2") == 2
        assert len(re.findall(r"^\[DONE\] .*world=2", rank.output(), re.MULTILINE)) == 2


@pytest.mark.slow
def test_both_ranks_fail_with_the_cause_when_one_exits(task):
    ranks = [task.start(number, FAULT="exit") for number in (0, 1)]
    assert [rank.wait() for rank in ranks] == [1, 1]
    for rank in ranks:
        verdict = re.search(r"^\[FATAL\] .*exit_code=1 cause=program-failed .*", rank.output(), re.MULTILINE)[0]
        assert "rank 1 of node 1" in verdict and "exit code 9" in verdict
        assert "step=run exit_code=1" in rank.output()


@pytest.mark.slow
def test_a_world_that_saves_because_one_pod_is_stopped_counts_as_stopped_on_all_nodes(task):
    """143 makes the Job replace the pod without counting a failure."""
    ranks = [task.start(number, FAULT="stop", GPU_CHARTS_END_LAST="yes") for number in (0, 1)]
    for rank in ranks:
        rank.until_output("waits\n")
    ranks[1].main.send_signal(signal.SIGTERM)
    assert [rank.wait() for rank in ranks] == [143, 143]
    assert "stopped step=run exit_code=75" in ranks[0].output()


@pytest.mark.slow
def test_a_listed_exit_code_still_restarts_the_group(task):
    settings = {"GPU_CHARTS_RECOVER_CODES": "75", "FAULT": "stop"}
    ranks = [task.start(number, **settings) for number in (0, 1)]
    for rank in ranks:
        rank.until_output("waits\n")
    ranks[1].main.send_signal(signal.SIGTERM)
    assert [rank.wait() for rank in ranks] == [75, 143]


@pytest.mark.slow
def test_a_contradiction_fails_the_task_without_a_start(task):
    ranks = [task.start(number, f"torchrun --nnodes=3 {task.program}") for number in (0, 1)]
    assert [rank.wait() for rank in ranks] == [2, 2]
    assert "--nnodes=3 contradicts NNODES=2" in ranks[0].output()


@pytest.mark.slow
def test_a_standalone_world_is_left_to_torchrun(task):
    ranks = [task.start(number, f"torchrun --standalone {task.program}") for number in (0, 1)]
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].output()
    assert all("[STEP] world=1" in rank.output() and "[DDP]" not in rank.output() for rank in ranks)
