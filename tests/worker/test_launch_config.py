"""ddp-launch before it starts anything: its configuration, the table of causes, and torchrun's command line."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from gpuworker.launch import failure_causes, network, torchrun_args
from gpuworker.launch.config import parser, read_config
from gpuworker.launch.failure_causes import CAUSES, Verdict, of_exception, of_text
from gpuworker.runtime.contract import INTERNAL_PREFIX
from tests.helpers.launchers import CONTRACT

REPO = Path(__file__).parents[2]


def config(*flags: str, **changes: str):
    return read_config(parser().parse_args([*flags, "--", "-m", "prog", "--flag"]), CONTRACT | changes)


def problems(*flags: str, program: tuple[str, ...] = ("-m", "prog"), **changes: str) -> list[tuple[str, list[str]]]:
    """What the verdict objects to, and the numbers that it requires."""
    try:
        wrong = read_config(parser().parse_args([*flags, "--", *program]), CONTRACT | changes).problem
    except Verdict as raised:
        wrong = raised
    assert wrong.code == 2
    found = [text.partition(": ") for text in str(wrong).split("; ")]
    return [(subject, re.findall(r"\d+", rest)) for subject, _, rest in found]


def test_a_complete_configuration_is_read():
    made = config(
        "--join-timeout=90", "--min-shm=16Gi", "--min-disk=2G", NUM_GPUS_PER_NODE="8", GPU_CHARTS_ATTEMPTS_IGNORED="2"
    )
    assert (made.nnodes, made.node_rank, made.nproc_per_node, made.world_size) == (4, 0, 8, 32)
    assert (made.master_port, made.launcher_port) == (29500, 29501)
    assert (made.master_addr, made.run_id, made.gpus_per_node) == ("run-0.run.ml.svc.cluster.local", "llm", 8)
    assert made.attempt == 5, "attempts that ended by preemption count, too"
    assert (made.min_shm, made.min_disk, made.timeouts["join-timeout"]) == (16 * 2**30, 2 * 10**9, 90)
    assert made.program == ("-m", "prog", "--flag")


def test_all_problems_are_reported_together():
    assert problems(NNODES="two", NODE_RANK="", NPROC_PER_NODE="0", MASTER_PORT="80", MASTER_ADDR="") == [
        ("NNODES=two", ["1", "65536"]),
        ("NODE_RANK=(not set)", ["0", "65535"]),
        ("NPROC_PER_NODE=0", ["1", "1024"]),
        ("MASTER_PORT=80", ["1024", "65534"]),
        ("MASTER_ADDR=(not set)", ["0"]),
    ]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"NODE_RANK": "4"}, ("NODE_RANK=4", ["4"])),
        ({"NNODES": "-1"}, ("NNODES=-1", ["1", "65536"])),
        ({"NNODES": "2.0"}, ("NNODES=2.0", ["1", "65536"])),
        ({"MASTER_PORT": "65535"}, ("MASTER_PORT=65535", ["1024", "65534"])),
    ],
)
def test_a_variable_out_of_range_is_refused(change, problem):
    assert problems(**change) == [problem]


@pytest.mark.parametrize(
    ("flag", "subject"),
    [
        ("--join-timeout=0", "--join-timeout=0"),
        ("--backend=etcd", "--etcd=(not set)"),
        ("--min-shm=lots", "--min-shm=lots"),
        ("--output-dir=/no/such", "--output-dir=/no/such"),
    ],
)
def test_an_invalid_flag_is_refused(flag, subject):
    assert [found for found, _ in problems(flag)] == [subject]


def test_a_missing_program_file_is_refused():
    assert problems(program=("no-such.py",)) == [("program no-such.py", [])]


def test_an_invalid_configuration_ends_with_the_code_of_usage(start, termination_log):
    node = start("-m", "gpuworker.launch.launcher", "--", "-m", "prog", **CONTRACT | {"NNODES": "lots"})
    assert node.wait() == 2
    assert '[FATAL] node=0 exit_code=2 cause=usage phase=config reason="NNODES=lots: ' in node.output
    assert termination_log.read_text().startswith("exit code 2 (usage): NNODES=lots: ")


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_only_node_0_hosts_the_c10d_store(rank):
    command = torchrun_args.arguments(
        config("--backend=c10d", NODE_RANK=str(rank)), "llm-3-1", "10.0.0.9", "/x/rank_runner.py"
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
        *("--no-python", "--", sys.executable, "-I", "-S", "/x/rank_runner.py", "--python", "-m", "prog", "--flag"),
    ]


def test_the_static_backend_passes_the_node_rank():
    command = torchrun_args.arguments(config("--backend=static", NODE_RANK="2"), "id", "10.0.0.9", "i")
    assert {"--rdzv-backend=static", "--node-rank=2", "--rdzv-conf=timeout=120"} < set(command)


def test_the_etcd_backend_uses_etcd_as_the_endpoint():
    command = torchrun_args.arguments(config("--backend=etcd", "--etcd=etcd:2379"), "id", "10.0.0.9", "i")
    assert {"--rdzv-backend=etcd-v2", "--rdzv-endpoint=etcd:2379"} < set(command)


def test_an_ipv6_address_of_node_0_is_bracketed():
    command = torchrun_args.arguments(config(), "id", "fd00::9", "i")
    assert {"--rdzv-endpoint=[fd00::9]:29500", "--local-addr=fd00::9"} < set(command)


def test_address_labels_sort_in_node_order():
    """torchrun ranks nodes by the order of these names; as texts, 10 comes before 2."""
    nodes = [read_config(parser().parse_args(["--", "-m", "p"]), CONTRACT | {"NNODES": "12000", "NODE_RANK": str(node)})
             for node in (0, 1, 2, 9, 10, 11, 100, 11999)]  # fmt: skip
    for master in ("10.0.0.9", "fd00::9", "zz.example"):
        labels = [
            next(word for word in torchrun_args.arguments(made, "i", master, "i") if "local-addr" in word)
            for made in nodes
        ]
        assert labels == sorted(labels)


def test_user_variables_win_and_pet_variables_are_removed(monkeypatch):
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    monkeypatch.setenv("PET_NNODES", "7")
    environ = torchrun_args.environment(config(), 4, "eth7", "/f", "/out")
    assert (environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"], environ["NCCL_SOCKET_IFNAME"]) == ("1", "=eth7")
    assert (environ["ATTEMPT"], environ["TORCH_FR_DUMP_TEMP_FILE"]) == ("4", "/out/flight-")
    assert "PET_NNODES" not in environ


def test_options_of_torchrun_itself_are_passed_on(monkeypatch):
    monkeypatch.setenv("PET_NUMA_BINDING", "node")
    assert torchrun_args.environment(config(), 4, "eth7", "/f", "/out")["PET_NUMA_BINDING"] == "node"
    assert config(PET_TEE="3").torchrun_output
    assert not config().torchrun_output


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
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB": "gpu-out-of-memory",
    "DataLoader worker (pid 12) is killed by signal: Bus error. It is possible that": "shared-memory-full",
}  # fmt: skip


@pytest.mark.parametrize("text", MESSAGES)
def test_messages_of_torch_are_classified(text):
    assert of_text(text).key == MESSAGES[text]


def test_an_unknown_message_has_no_cause():
    assert of_text("ZeroDivisionError: division by zero") is None


def test_a_root_cause_has_priority_over_a_secondary_one():
    assert of_text("Connection closed by peer\nCUDA out of memory").key == "gpu-out-of-memory"


def exception(kind: str, reason: str, number: int | None = None):
    return of_exception({"kinds": [kind, "builtins.Exception"], "reason": reason, "errno": number}).key


@pytest.mark.parametrize(
    ("kind", "reason", "number"),
    [
        ("socket.gaierror", "gaierror: [Errno -2] Name or service not known", None),
        ("builtins.OSError", "OSError: [Errno 98] Address already in use", 98),
        ("builtins.OSError", "OSError: [Errno 113] No route to host", 113),
        ("builtins.TimeoutError", "TimeoutError: database: Timed out waiting 5000ms", None),
        ("builtins.ConnectionRefusedError", "ConnectionRefusedError: [Errno 111] Connection refused", 111),
        ("builtins.BrokenPipeError", "BrokenPipeError: [Errno 32] Broken pipe", 32),
        ("requests.exceptions.ConnectionError", "ConnectionError: 'hub' (Name or service not known)", None),
        ("huggingface_hub.errors.HfHubHTTPError", "HfHubHTTPError: Temporary failure in name resolution", None),
        ("mlflow.exceptions.MlflowException", "MlflowException: Connection refused", None),
        ("builtins.RuntimeError", "RuntimeError: the redis queue timed out, Connection reset by peer", None),
        ("builtins.SystemError", "SystemError: EADDRINUSE", None),
    ],
)  # fmt: skip
def test_an_error_of_the_program_is_never_one_of_the_launch(kind, reason, number):
    assert exception(kind, reason, number) == "program-failed"


@pytest.mark.parametrize(
    ("kind", "reason", "number", "cause"),
    [
        ("builtins.OSError", "OSError: [Errno 28] No space left on device", 28, "disk-full"),
        ("builtins.OSError", "OSError: [Errno 122] Disk quota exceeded", 122, "disk-full"),
        ("torch.OutOfMemoryError", "OutOfMemoryError: anything", None, "gpu-out-of-memory"),
        ("builtins.RuntimeError", "RuntimeError: HIP out of memory. Tried", None, "gpu-out-of-memory"),
        ("torch.AcceleratorError", "AcceleratorError: uncorrectable ECC error encountered", None, "gpu-failed"),
        ("torch.distributed.DistBackendError", "NCCL error: remote process exited", None, "peer-lost"),
        ("torch.distributed.DistNetworkError", "DistNetworkError: failed to recv, got 0 bytes", None, "peer-lost"),
    ],
)  # fmt: skip
def test_an_exception_is_judged_by_its_class_first(kind, reason, number, cause):
    assert exception(kind, reason, number) == cause


def test_causes_have_unique_keys_all_codes_and_valid_patterns():
    assert len({cause.key for cause in CAUSES}) == len(CAUSES)
    assert {cause.code for cause in CAUSES} == {1, 2, 64, 65, 66, 67, 68, 69, 70, 71, 75, 143}
    assert all(re.compile(cause.pattern) and cause.meaning and cause.remedy for cause in CAUSES)


def test_the_documentation_prints_the_table():
    assert failure_causes.markdown() in (REPO / "docs/ddp-run.md").read_text()


@pytest.mark.parametrize("name", ["rank_wrapper", "rank_runner"])
def test_programs_in_a_rank_have_the_prefix_of_the_contract(name):
    """They cannot import the contract, because the program may bring another gpuworker."""
    source = (REPO / f"worker/src/gpuworker/launch/{name}.py").read_text()
    assert f'PREFIX = "{INTERNAL_PREFIX}"' in source
