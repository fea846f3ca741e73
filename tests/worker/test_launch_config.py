"""ddp-launch before it starts anything: torchrun's command line, its configuration, the rank's
environment.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from gpuworker.launch import environment, preflight
from gpuworker.launch.command_line import read_arguments
from gpuworker.launch.config import LaunchConfig, read_config
from gpuworker.launch.failure_causes import CAUSES, Failure
from gpuworker.launch.protocol import Orders
from tests.helpers.launchers import CONTRACT

REPO = Path(__file__).parents[2]
PROGRAM = ("-m", "prog", "--flag")
TASK = {
    "NNODES": "2",
    "NODE_RANK": "1",
    "NPROC_PER_NODE": "8",
    "MASTER_ADDR": "t-0.g",
    "MASTER_PORT": "29500",
}


def config(*words: str, environ: dict[str, str] = CONTRACT, **changes: str) -> LaunchConfig:
    args, wrong = read_arguments([*words, *PROGRAM])
    assert not wrong, wrong
    return read_config(args, environ | changes)


def problem(*words: str, environ: dict[str, str] = CONTRACT, **changes: str) -> str:
    """What the failure objects to."""
    args, wrong = read_arguments([*(words or PROGRAM)])
    try:
        wrong = read_config(args, environ | changes, wrong).problem
    except Failure as raised:
        wrong = raised
    assert wrong.code == 2
    return wrong.reason


def test_a_complete_configuration_is_read():
    made = config("--join-timeout=90", NUM_GPUS_PER_NODE="8", GPU_CHARTS_ATTEMPTS_IGNORED="2")
    assert (made.nnodes, made.node_rank, made.nproc_per_node, made.world_size) == (4, 0, 8, 32)
    assert (made.master_port, made.launcher_port) == (29500, 29501)
    assert (made.master_addr, made.run_id, made.gpus_per_node) == (
        "run-0.run.ml.svc.cluster.local",
        "llm",
        8,
    )
    assert made.attempt == 5, "attempts that ended by preemption count, too"
    assert made.join_timeout == 90
    assert made.program == (sys.executable, "-u", *PROGRAM)


def test_one_machine_needs_no_variables():
    made = config("--nproc-per-node", "2", environ={})
    assert (made.nnodes, made.node_rank, made.nproc_per_node, made.master_addr) == (
        1,
        0,
        2,
        "127.0.0.1",
    )
    assert config(environ={}).nproc_per_node == 1
    two = config("--nnodes=2", "--node-rank=1", "--master-addr=node-0", environ={})
    assert (two.nproc_per_node, two.master_port) == (1, 29500), "as torchrun"
    alone = config("--standalone", "--nproc-per-node=2", environ=TASK, NPROC_PER_NODE="")
    assert (alone.nnodes, alone.node_rank, alone.nproc_per_node, alone.master_addr) == (
        1,
        0,
        2,
        "127.0.0.1",
    )


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["-m", "pkg.train", "--lr", "1"], [sys.executable, "-u", "-m", "pkg.train", "--lr", "1"]),
        (["--module", "pkg.train", "-m"], [sys.executable, "-u", "-m", "pkg.train", "-m"]),
        (["--no-python", "sh", "-c", "x"], ["sh", "-c", "x"]),
        (["--no_python", "--", "sh", "--nnodes=9"], ["sh", "--nnodes=9"]),
        (["--", "--no-python", "sh"], ["sh"]),
        (["-", "x"], [sys.executable, "-u", "-", "x"]),
        (
            [__file__, "--", "--nnodes", "9", ""],
            [sys.executable, "-u", __file__, "--", "--nnodes", "9", ""],
        ),
    ],
)
def test_the_program_keeps_its_arguments(words, program):
    args, problem = read_arguments(["--nnodes=4", *words])
    assert not problem and list(read_config(args, CONTRACT).program) == program


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--nnodes=2 --nproc_per_node=8 --node_rank=1 --master_addr=t-0.g --master_port=29500",
        "--nnodes 2 --nproc-per-node gpu --node-rank 1 --master-addr t-0.g",
        "--nnodes=2:2 --rdzv_id=x --rdzv_conf=timeout=9 --rdzv_endpoint=t-0.g:29500 --max_restarts=0",
        "--rdzv_backend=c10d --monitor_interval=1",
    ],
)
def test_flags_that_repeat_what_the_chart_has_set_change_nothing(flags):
    changed, plain = config(*flags.split(), environ=TASK), config(environ=TASK)
    assert (changed.nnodes, changed.node_rank, changed.nproc_per_node) == (2, 1, 8)
    assert (changed.master_addr, changed.master_port, changed.program) == (
        "t-0.g",
        29500,
        plain.program,
    )


def test_flags_that_a_user_may_change_are_followed():
    flags = "--nproc_per_node=4 --master_addr=10.0.0.7 --master_port=30000 --max-restarts=3 --role trainer"
    made = config(*flags.split(), environ=TASK)
    assert (made.nproc_per_node, made.master_addr, made.master_port) == (4, "10.0.0.7", 30000)
    assert (made.max_restarts_in_place, made.role) == (3, "trainer")
    assert config("--rdzv-conf=join_timeout=77,close_timeout=3", environ=TASK).join_timeout == 77


@pytest.mark.parametrize(
    ("endpoint", "address", "port"),
    [
        ("10.0.0.7:30000", "10.0.0.7", 30000),
        ("[fd00::7]:30000", "fd00::7", 30000),
        ("fd00::7:30000", "fd00::7", 30000),
        ("[fd00::7]", "fd00::7", 29500),
    ],
)
def test_the_endpoint_of_the_rendezvous_is_the_address_of_node_0(endpoint, address, port):
    made = config(f"--rdzv_endpoint={endpoint}", environ=TASK)
    assert (made.master_addr, made.master_port) == (address, port)


def test_the_address_of_node_0_is_its_name_which_outlives_its_pod():
    known = TASK | {"SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8", "PET_MASTER_ADDR": "t-0.g"}
    assert config("--master_addr=10.0.0.7", environ=known).master_addr == "t-0.g"
    assert config("--master_addr=10.0.0.8", environ=known).master_addr == "10.0.0.8"
    assert config(environ=known, MASTER_ADDR="10.0.0.7").master_addr == "t-0.g"


# Flags and variables -> what the line says of them.
REFUSED = {
    "--nnodes=4": "--nnodes=4 contradicts NNODES=2 of this pod",
    "--nnodes=1:2": "--nnodes=1:2",
    "--node_rank=0": "--node-rank=0 contradicts",
    "--rdzv_backend=etcd-v2": "--rdzv-backend",
    "--rdzv_conf=timeout=0": "--rdzv-conf",
    "--tee=3": "--tee",
    "-r 3": "arguments: -r",
    "--output-dir=/no/such": "--output-dir=/no/such",
    "--max-restarts=lots": "--max-restarts",
    "--join-timeout=0": "--join-timeout",
    "--progress-timeout=-1": "--progress-timeout",
    "NODE_RANK=4": "NODE_RANK=4",
    "NODE_RANK=": "NODE_RANK=(not set): must be a whole number from 0 to 65535",
    "NNODES=-1": "NNODES=-1: must be a whole number from 1 to 65536",
    "NNODES=2.0": "NNODES=2.0",
    "NPROC_PER_NODE=0": "NPROC_PER_NODE=0: must be a whole number from 1 to 1024",
    "MASTER_PORT=65535": "MASTER_PORT=65535: must be a whole number from 1024 to 65534",
    "MASTER_ADDR=": "MASTER_ADDR=(not set)",
}


@pytest.mark.parametrize(("words", "said"), REFUSED.items())
def test_what_cannot_be_done_is_refused(words, said):
    name, _, value = words.partition("=")
    flags, changes = (words.split(), {}) if words[0] == "-" else ([], {name: value})
    assert said in problem(*flags, *PROGRAM, environ=TASK, **changes)


def test_a_missing_program_is_refused():
    assert problem("no-such.py").startswith("program no-such.py: ")
    assert problem("--no-python", "no-such-command").startswith("program no-such-command: ")
    assert read_arguments(["--nnodes=2"])[1].cause == "usage"
    assert read_arguments(["--no-such-flag", "train.py"])[1].cause == "usage"


def test_an_invalid_configuration_ends_with_the_code_of_usage(start, termination_log):
    node = start(
        "-m", "gpuworker.launch.launcher", "--", "-m", "prog", **CONTRACT | {"NNODES": "lots"}
    )
    assert node.wait() == 2
    assert "exit_code=2 cause=usage " in node.output
    assert termination_log.read_text().startswith("exit code 2 (usage): NNODES=lots: ")


def environ_of(made: LaunchConfig, restarts: int = 0) -> dict[str, str]:
    return environment.of_rank(
        made, Orders(attempt=4, restarts=restarts), 1, "10.0.0.9", "eth7", "/f"
    )


def test_a_rank_has_torchruns_variables(monkeypatch):
    monkeypatch.setenv("PET_NNODES", "7")
    monkeypatch.setenv("PYTHONPATH", "/own")
    found = environ_of(config("--max-restarts=2", NODE_RANK="2"), restarts=1)
    wanted = {
        "RANK": "17", "LOCAL_RANK": "1", "WORLD_SIZE": "32", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "2",
        "GROUP_WORLD_SIZE": "4", "ROLE_RANK": "17", "ROLE_WORLD_SIZE": "32", "ROLE_NAME": "default",
        "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "29500", "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "2", "TORCHELASTIC_RUN_ID": "llm", "ATTEMPT": "13",
        "PYTHONPATH": "/f/hook:/own",
    }  # fmt: skip
    assert {name: found.get(name) for name in wanted} == wanted
    assert "PET_NNODES" not in found


def test_attempts_of_pods_and_restarts_in_place_have_different_numbers():
    made = config("--max-restarts=3")
    numbers = [
        environment.of_rank(made, Orders(attempt=attempt, restarts=restarts), 0, "a", "e", "/f")[
            "ATTEMPT"
        ]
        for attempt in range(3)
        for restarts in range(4)
    ]
    assert numbers == [str(number) for number in range(12)]


def test_variables_of_the_user_win(monkeypatch):
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    found = environ_of(config())
    assert (found["TORCH_NCCL_ASYNC_ERROR_HANDLING"], found["NCCL_SOCKET_IFNAME"]) == ("1", "=eth7")


@pytest.mark.parametrize(
    ("setting", "name", "takes"),
    [
        ("eth", "eth0", True),
        ("eth", "ib0", False),
        ("=eth0", "eth0", True),
        ("=eth0", "eth01", False),
        ("^lo,docker", "docker0", False),
        ("^lo,docker", "eth0", True),
        ("^=eth0", "eth01", True),
        ("ib,eth1", "eth1", True),
    ],
)
def test_interface_names_match_as_nccl_matches_them(setting, name, takes):
    assert preflight.nccl_takes(setting, name) is takes


def test_causes_have_unique_keys_and_all_codes():
    assert len({cause.key for cause in CAUSES}) == len(CAUSES)
    assert {cause.code for cause in CAUSES} == {
        0,
        1,
        2,
        64,
        65,
        66,
        67,
        68,
        69,
        70,
        71,
        72,
        75,
        143,
    }
    assert all(cause.meaning and cause.remedy for cause in CAUSES)


def test_the_hooks_use_the_contracts_prefix():
    """It cannot import the contract, because the program may bring another gpuworker."""
    source = (REPO / "worker/src/gpuworker/launch/python_hook.py").read_text()
    names = set(re.findall(r"GPU_CHARTS_\w+", source))
    assert names and names <= set(environ_of(config())), names
