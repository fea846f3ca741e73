"""ddp-launch before it starts anything: the plan, the master's name, and the command for torchrun."""

import socket
import sys

import pytest

from gpuworker.launch import ddp
from gpuworker.launch.ddp import PlanError, read_world, torchrun_command, wait_for_name

PLAN = {
    "NNODES": "4",
    "NODE_RANK": "0",
    "NPROC_PER_NODE": "8",
    "MASTER_ADDR": "run-0.run.ml.svc.cluster.local",
    "MASTER_PORT": "29500",
    "RUN_ID": "llm",
    "ATTEMPT": "3",
}


def test_a_good_plan():
    world = read_world(PLAN)
    assert (world.nodes, world.node_rank, world.processes, world.port) == (4, 0, 8, 29500)
    assert (world.master, world.run_id, world.attempt) == ("run-0.run.ml.svc.cluster.local", "llm", "3")


def test_everything_wrong_is_named_at_once():
    with pytest.raises(PlanError) as error:
        read_world({"NNODES": "two", "NPROC_PER_NODE": "0", "MASTER_PORT": "80"})
    assert str(error.value).split("; ") == [
        "NNODES=two: need a whole number from 1 to 65536",
        "NODE_RANK=(not set): need a whole number from 0 to 65535",
        "NPROC_PER_NODE=0: need a whole number from 1 to 1024",
        "MASTER_PORT=80: need a whole number from 1024 to 65535",
        "MASTER_ADDR=(not set): need the DNS name of node 0",
    ]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"NODE_RANK": "4"}, "NODE_RANK=4: must be below NNODES=4"),
        ({"NNODES": "-1"}, "NNODES=-1: need a whole number from 1 to 65536"),
        ({"NNODES": "2.0"}, "NNODES=2.0: need a whole number from 1 to 65536"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT=65536: need a whole number from 1024 to 65535"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR=(not set): need the DNS name of node 0"),
    ],
)
def test_one_wrong_variable(change, problem):
    with pytest.raises(PlanError) as error:
        read_world(PLAN | change)
    assert str(error.value) == problem


def test_a_wrong_plan_is_a_usage_error(monkeypatch, capsys, termination_log):
    monkeypatch.setattr(sys, "argv", ["ddp-launch", "--", "train.py"])
    for name, value in (PLAN | {"NNODES": "lots"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as end:
        ddp.main()
    assert end.value.code == 2
    why = "the plan is wrong: NNODES=lots: need a whole number from 1 to 65536"
    assert f'[FATAL] node=0 exit_code=2 why="{why}"' in capsys.readouterr().out
    assert termination_log.read_text() == f"exit code 2: {why}"


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_only_node_0_hosts_the_rendezvous(monkeypatch, rank):
    monkeypatch.setattr(socket, "getfqdn", lambda: f"run-{rank}.run.ml.svc.cluster.local")
    command = torchrun_command(read_world(PLAN | {"NODE_RANK": str(rank)}), 90, ["-m", "prog", "--flag"])
    assert command == [
        sys.executable,
        *("-m", "torch.distributed.run"),
        "--nnodes=4",
        "--nproc-per-node=8",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=run-0.run.ml.svc.cluster.local:29500",
        "--rdzv-id=llm-3",
        f"--rdzv-conf=is_host={'true' if rank == 0 else 'false'},join_timeout=90,read_timeout=90",
        f"--local-addr=run-{rank}.run.ml.svc.cluster.local",
        "--max-restarts=0",
        *("-m", "prog", "--flag"),
    ]


def test_a_name_that_appears_late_is_found(monkeypatch):
    """A pod's DNS record may come half a minute after the pod."""
    answers = [socket.gaierror(), socket.gaierror(), [(None, None, None, None, ("127.0.0.1", 0))]]

    def lookup(*_, **__):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    assert wait_for_name("run-0.run", 30, poll_s=0.01) == "127.0.0.1"
    assert answers == []


@pytest.mark.parametrize("name", ["a..b", "x" * 64])
def test_what_is_no_name_does_not_resolve(name):
    assert wait_for_name(name, 0.05, poll_s=0.01) is None
