"""ddp-launch before it starts anything: its configuration, the table of causes, and torchrun's command line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuworker.launch import failure_causes, network, torchrun_args
from gpuworker.launch.config import parser, read_config
from gpuworker.launch.failure_causes import CAUSES, Verdict, classify
from gpuworker.runtime.contract import INTERNAL_PREFIX
from tests.helpers.launchers import CONTRACT

REPO = Path(__file__).parents[2]


def config(*flags: str, **changes: str):
    return read_config(parser().parse_args([*flags, "--", "-m", "prog", "--flag"]), CONTRACT | changes)


def problems(*flags: str, program: tuple[str, ...] = ("-m", "prog"), **changes: str) -> list[str]:
    with pytest.raises(Verdict) as wrong:
        read_config(parser().parse_args([*flags, "--", *program]), CONTRACT | changes)
    assert wrong.value.code == 2
    return str(wrong.value).split("; ")


def test_a_complete_configuration_is_read():
    made = config(
        "--join-timeout=90", "--min-shm=16Gi", "--min-disk=2G", NUM_GPUS_PER_NODE="8", GPU_CHARTS_ATTEMPTS_IGNORED="2"
    )
    assert (made.nnodes, made.node_rank, made.nproc_per_node, made.world_size) == (4, 0, 8, 32)
    assert (made.master_port, made.launcher_port) == (29500, 29501)
    assert (made.master_addr, made.run_id, made.gpus_per_node) == ("run-0.run.ml.svc.cluster.local", "llm", 8)
    assert made.attempt == 5, "attempts that a preemption ended were attempts too"
    assert (made.min_shm, made.min_disk, made.timeouts["join-timeout"]) == (16 * 2**30, 2 * 10**9, 90)
    assert made.program == ("-m", "prog", "--flag")


def test_everything_wrong_is_named_at_once():
    assert problems(NNODES="two", NODE_RANK="", NPROC_PER_NODE="0", MASTER_PORT="80", MASTER_ADDR="") == [
        "NNODES=two: must be a whole number from 1 to 65536",
        "NODE_RANK=(not set): must be a whole number from 0 to 65535",
        "NPROC_PER_NODE=0: must be a whole number from 1 to 1024",
        "MASTER_PORT=80: must be a whole number from 1024 to 65534",
        "MASTER_ADDR=(not set): must be the DNS name of node 0",
    ]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"NODE_RANK": "4"}, "NODE_RANK=4: must be below NNODES=4, one node too many?"),
        ({"NNODES": "-1"}, "NNODES=-1: must be a whole number from 1 to 65536"),
        ({"NNODES": "2.0"}, "NNODES=2.0: must be a whole number from 1 to 65536"),
        ({"MASTER_PORT": "65535"}, "MASTER_PORT=65535: must be a whole number from 1024 to 65534"),
    ],
)
def test_one_wrong_variable(change, problem):
    assert problems(**change) == [problem]


@pytest.mark.parametrize(
    ("flag", "problem"),
    [
        ("--join-timeout=0", "--join-timeout=0: must be at least 1 second"),
        ("--backend=etcd", "--etcd=(not set): --backend=etcd needs HOST:PORT"),
        ("--min-shm=lots", "--min-shm=lots: must be a size such as 16Gi"),
        ("--output-dir=/no/such", "--output-dir=/no/such: no such folder"),
    ],
)
def test_one_wrong_flag(flag, problem):
    assert problems(flag) == [problem]


def test_a_program_that_is_not_there():
    assert problems(program=("no-such.py",)) == ["program no-such.py: no such file on this node"]


def test_a_wrong_configuration_is_a_usage_error(start, termination_log):
    node = start("-m", "gpuworker.launch.launcher", "--", "-m", "prog", **CONTRACT | {"NNODES": "lots"})
    assert node.wait() == 2
    why = "NNODES=lots: must be a whole number from 1 to 65536"
    assert (
        f'[FATAL] node=0 exit_code=2 cause=usage phase=config reason="{why}" remedy="set what the line names"'
        in node.output
    )
    assert termination_log.read_text() == f"exit code 2 (usage): {why}. set what the line names"


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_only_node_0_hosts_the_c10d_store(rank):
    command = torchrun_args.arguments(
        config("--backend=c10d", NODE_RANK=str(rank)), "llm-3-1", "10.0.0.9", "/x/rank_wrapper.py"
    )
    assert command == [
        "--nnodes=4",
        "--nproc-per-node=8",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=10.0.0.9:29500",
        f"--rdzv-conf=is_host={'true' if rank == 0 else 'false'},join_timeout=120,read_timeout=120",
        "--rdzv-id=llm-3-1",
        "--local-addr=10.0.0.9" if rank == 0 else f"--local-addr=~node-0000{rank}",
        "--max-restarts=0",
        "/x/rank_wrapper.py",
        *("-m", "prog", "--flag"),
    ]


def test_static_gives_each_node_its_rank():
    command = torchrun_args.arguments(config("--backend=static", NODE_RANK="2"), "id", "10.0.0.9", "i")
    assert {"--rdzv-backend=static", "--node-rank=2", "--rdzv-conf=timeout=120"} < set(command)


def test_etcd_is_the_endpoint():
    command = torchrun_args.arguments(config("--backend=etcd", "--etcd=etcd:2379"), "id", "10.0.0.9", "i")
    assert {"--rdzv-backend=etcd-v2", "--rdzv-endpoint=etcd:2379"} < set(command)


def test_an_ipv6_master_gets_its_brackets():
    command = torchrun_args.arguments(config(), "id", "fd00::9", "i")
    assert {"--rdzv-endpoint=[fd00::9]:29500", "--local-addr=fd00::9"} < set(command)


def test_labels_sort_as_nodes_do():
    """torchrun ranks nodes by the order of these names; as texts, 10 comes before 2."""
    nodes = [read_config(parser().parse_args(["--", "-m", "p"]), CONTRACT | {"NNODES": "12000", "NODE_RANK": str(node)})
             for node in (0, 1, 2, 9, 10, 11, 100, 11999)]  # fmt: skip
    for master in ("10.0.0.9", "fd00::9", "zz.example"):
        labels = [
            next(word for word in torchrun_args.arguments(made, "i", master, "i") if "local-addr" in word)
            for made in nodes
        ]
        assert labels == sorted(labels)


def test_the_users_settings_win_and_torchruns_own_variables_go(monkeypatch):
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    monkeypatch.setenv("PET_NNODES", "7")
    environ = torchrun_args.environment(config(), 4, "eth7", "/f", "/out/flight-")
    assert (environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"], environ["NCCL_SOCKET_IFNAME"]) == ("1", "=eth7")
    assert (environ["ATTEMPT"], environ["TORCH_FR_DUMP_TEMP_FILE"]) == ("4", "/out/flight-")
    assert "PET_NNODES" not in environ


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
def test_how_nccl_reads_its_setting(setting, name, takes):
    assert network.nccl_takes(setting, name) is takes


# What torch 2.13 to 2.15 print.
MESSAGES = {
    "the network addresses of (a, 29500) cannot be retrieved (gai error: -2 - Name or service not known)":
        "name-not-resolved",
    "The server socket has failed to listen on any local network address. errno: 98 EADDRINUSE": "port-in-use",
    "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError": "world-not-formed",
    "Timed out after 21 seconds waiting for clients. 2/3 clients joined": "world-not-formed",
    "torch.distributed.elastic.rendezvous.api.RendezvousClosedError": "rendezvous-closed",
    "Gloo connectFullMesh failed with timed out connecting: SO_ERROR: Connection timed out": "packets-dropped",
    "Unable to find address for: eth99": "interface-not-found",
    "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation to complete":
        "collective-timeout",
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran": "collective-timeout",
    "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:2001": "peer-lost",
    "OSError: [Errno 28] No space left on device": "disk-full",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB": "gpu-out-of-memory",
    "Unexpected bus error encountered in worker. This might be caused by insufficient shared": "shared-memory-full",
}  # fmt: skip


@pytest.mark.parametrize("text", MESSAGES)
def test_what_torch_prints_is_explained(text):
    assert classify(text).key == MESSAGES[text]


def test_what_is_unknown_stays_unexplained():
    assert classify("ZeroDivisionError: division by zero") is None


def test_a_root_cause_goes_before_an_echo():
    assert classify("Connection closed by peer\nNo space left on device").key == "disk-full"


def test_the_table_is_sound():
    assert len({cause.key for cause in CAUSES}) == len(CAUSES)
    assert {cause.code for cause in CAUSES} == {1, 2, 64, 65, 66, 67, 68, 69, 70, 75, 143}
    assert all(re.compile(cause.pattern) and cause.meaning and cause.remedy for cause in CAUSES)


def test_the_documentation_prints_the_table():
    assert failure_causes.markdown() in (REPO / "docs/ddp-run.md").read_text()


def test_the_rank_wrapper_has_the_prefix_of_the_contract():
    """It cannot import the contract, because the program may bring another gpuworker."""
    source = (REPO / "worker/src/gpuworker/launch/rank_wrapper.py").read_text()
    assert f'PREFIX = "{INTERNAL_PREFIX}"\n' in source
