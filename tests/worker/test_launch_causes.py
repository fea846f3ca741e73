"""Which cause an exception, a wait status or a watchdog's words have, and which rank the judge
names.
"""

from __future__ import annotations

import errno
from types import SimpleNamespace

import pytest

from gpuworker.launch import python_hook, root_cause, stacks
from gpuworker.launch.failure_causes import Failure
from gpuworker.launch.output import RankOutput
from gpuworker.launch.protocol import NodeInfo, NodeState, RankReport, Status
from gpuworker.launch.rank_failure import of_abort, of_exception, signal_of
from gpuworker.launch.root_cause import Node
from tests.worker.nccl_logs import LOGS

FRAME = "frame #7: c10d::ProcessGroupNCCL::watchdogHandler() + 0x1da (0x7f30 in /usr/lib/libtorch_cuda.so)\n"
NOW = 1000.0
ADDRESSES = ["10.0.0.1", "run-0.run.ml", "29500"]


def error(
    kind: str, text: str = "", number: int | None = None, file: str = "", how: str = ""
) -> dict:
    lines = [line for line in text.splitlines() if line.strip()]
    bases = ["builtins.OSError"] if number is not None or kind.endswith("OSError") else []
    return {
        "how": how, "kinds": [kind, *bases, "builtins.Exception"],
        "text": " … ".join(lines[:1] + lines[1:][-1:]), "errno": number, "file": file, "frames": [],
    }  # fmt: skip


def cause(*errors: dict, full: tuple[str, ...] = (), oom: bool = False) -> str:
    return of_exception(list(errors), ADDRESSES, list(full), oom)


RUNTIME, NETWORK = "builtins.RuntimeError", "torch.distributed.DistNetworkError"
BACKEND = "torch.distributed.DistBackendError"


@pytest.mark.parametrize(
    "found",
    [
        error("socket.gaierror", "[Errno -2] Name or service not known", -2),
        error("builtins.OSError", "[Errno 98] Address already in use", 98),
        error("builtins.TimeoutError", "database: Timed out waiting 5000ms"),
        error("builtins.ConnectionRefusedError", "[Errno 111] Connection refused", 111),
        error("builtins.BrokenPipeError", "[Errno 32] Broken pipe", 32),
        error("requests.exceptions.ConnectionError", "'hub' (Name or service not known)"),
        error("mlflow.exceptions.MlflowException", "Connection refused"),
        error(RUNTIME, "the redis queue timed out, Connection reset by peer"),
        error(RUNTIME, "SHIPPING-API: Broken pipe while posting metrics"),
        error(RUNTIME, "CUDA kernel cache: download failed: Connection refused"),
        error(RUNTIME, "File /opt/venv/torch_utils/io.py: Read error: not a PNG"),
        error(
            "torch.distributed.checkpoint.api.CheckpointException", "Missing key in checkpoint: b"
        ),
        error(
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError", "train.py FAILED"
        ),
        error("torch.multiprocessing.spawn.ProcessRaisedException", "Connection refused by mlflow"),
        error("torch.distributed.pipelining._utils.PipeliningMetadataError", "shapes"),
        error(NETWORK, "The server socket has failed to listen on [::]:8123: EADDRINUSE"),
        error(
            NETWORK,
            "The client socket has failed to connect to (metrics, 8000). Connection refused",
        ),
        error(
            BACKEND,
            "NCCL error, invalid usage\nncclInvalidUsage\nDuplicate GPU detected : rank 1 and rank 0",
        ),
        error("builtins.OSError", "[Errno 28] inotify watch limit reached", errno.ENOSPC),
        error("builtins.ValueError", "uncorrectable ECC error, the user wrote"),
    ],
)
def test_an_error_of_the_program_is_the_programs(found):
    assert cause(found) == "program-failed"


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (error("torch.OutOfMemoryError", "anything"), "gpu-out-of-memory"),
        (error(RUNTIME, "HIP out of memory. Tried"), "gpu-out-of-memory"),
        (error(BACKEND, "NCCL error: Cuda failure 2 'out of memory'"), "gpu-out-of-memory"),
        (
            error("torch.AcceleratorError", "CUDA error: uncorrectable ECC error encountered"),
            "gpu-failed",
        ),
        (error(RUNTIME, "CUDA error: unspecified launch failure"), "gpu-failed"),
        (error(BACKEND, "NCCL error: remote process exited"), "peer-lost"),
        (error(NETWORK, "[10.0.0.1]:2001 failed to recv, got 0 bytes"), "peer-lost"),
        (
            error(NETWORK, "The server socket has failed to listen on [::]:29500: EADDRINUSE"),
            "port-in-use",
        ),
        (
            error(
                RUNTIME, "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:1"
            ),
            "peer-lost",
        ),
        (
            error(RUNTIME, "[gloo/transport/unbound_buffer.cc:78] Timed out waiting 5ms"),
            "collective-timeout",
        ),
        (
            error(RUNTIME, "[Rank 0]: Ranks 1 failed to pass monitoredBarrier in 4000 ms"),
            "collective-timeout",
        ),
        (
            error(RUNTIME, "DataLoader worker (pid 1) is killed by signal: Bus error. It is"),
            "shared-memory-full",
        ),
        (error("builtins.OSError", "Disk quota exceeded", errno.EDQUOT), "disk-full"),
        (
            error(
                "safetensors_rust.SafetensorError",
                "I/O error: No space left on device (os error 28)",
            ),
            "disk-full",
        ),
    ],
)
def test_a_cause_of_its_own_is_found_by_class_and_component(found, wanted):
    assert cause(found) == wanted


@pytest.mark.parametrize(
    ("found", "full", "wanted"),
    [
        (
            error("builtins.OSError", "No space left on device", errno.ENOSPC),
            ("/out",),
            "disk-full",
        ),
        (
            error(RUNTIME, "[enforce fail at inline_container.cc] . unexpected pos 704 vs 598"),
            ("/out",),
            "disk-full",
        ),
        (error("builtins.OSError", "1048576 requested and 131056 written"), ("/out",), "disk-full"),
        (
            error("builtins.OSError", "No space left", errno.ENOSPC),
            ("/dev/shm",),
            "shared-memory-full",
        ),
        (error("builtins.ValueError", "loss is NaN"), ("/out",), "program-failed"),
    ],
)
def test_a_full_disk_is_a_fact_of_the_node(found, full, wanted):
    assert cause(found, full=full) == wanted


def test_a_killed_worker_is_out_of_memory_only_if_the_kernel_counted_it():
    killed = error(RUNTIME, "DataLoader worker (pid 7) is killed by signal: Killed.")
    assert (cause(killed), cause(killed, oom=True)) == ("program-failed", "out-of-memory")


CLOSED = "[gloo/transport/tcp/pair.cc:1] Connection closed by peer [10.0.0.2]:1"
TIMED_OUT = "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 5000ms"


@pytest.mark.parametrize(
    ("outer", "how", "inner", "wanted"),
    [
        (error("train.StepFailed", "step 12"), "from", error(RUNTIME, CLOSED), "peer-lost"),
        (error("train.StepFailed", "step 12"), "while", error(RUNTIME, CLOSED), "peer-lost"),
        (
            error(RUNTIME, CLOSED),
            "while",
            error("builtins.ValueError", "bad shard 17"),
            "program-failed",
        ),
        (
            error(RUNTIME, TIMED_OUT),
            "while",
            error("builtins.KeyError", "cache"),
            "collective-timeout",
        ),
        (error("train.Failed", "x"), "from", error("torch.OutOfMemoryError"), "gpu-out-of-memory"),
        (
            error("builtins.ExceptionGroup", "2"),
            "first of",
            error("torch.OutOfMemoryError"),
            "gpu-out-of-memory",
        ),
    ],
)
def test_the_chain_of_exceptions_decides(outer, how, inner, wanted):
    assert cause(outer, inner | {"how": how}) == wanted


def tail_of(log: dict) -> RankOutput:
    output = RankOutput(None)
    for line in log.get("prints", "").splitlines():
        output.keep(
            (FRAME * int(line.split()[1]) if line.startswith("frames: ") else f"{line}\n").encode()
        )
    return output


@pytest.mark.parametrize("log", LOGS, ids=[log["name"] for log in LOGS])
def test_failures_of_nccl_in_the_words_of_public_reports(log):
    if "raises" in log:
        assert cause(error(*log["raises"])) == log["cause"]
        return
    output = tail_of(log)
    found, line = of_abort(output.lines()) if log.get("signal") == 6 else ("program-failed", "")
    assert found == log["cause"], (found, line)
    assert all(word in line for word in log.get("words", "").split()), line


def test_a_shell_passes_on_a_signal_of_its_program():
    assert signal_of(137, ("bash", "run.sh")) == 9 and signal_of(-11, ("python",)) == 11
    assert signal_of(137, ("python", "train.py")) == 0 and signal_of(3, ("bash",)) == 0


def nodes(*reports: RankReport) -> list[Node]:
    """One node per rank; each has answered."""
    made = []
    for report in reports:
        info = NodeInfo(node=report.rank, pod=f"run-{report.rank}")
        report.node = info.name
        made.append(Node(Status("run", info, NodeState.RUNNING, answered=1), NOW))
        made[-1].reports = [report]
    return made


def verdict(known: list[Node], *failures: Failure, ago: float = 1.0) -> Failure | None:
    told = [root_cause.named(known[each.rank].name, each) for each in failures]
    asked = all(node.status.answered for node in known if not node.lost)
    return root_cause.failed(known, told, asked, ago, NOW)


def lost_peer(rank: int) -> Failure:
    return Failure("peer-lost", "Connection closed by peer", rank=rank)


def test_nothing_is_decided_before_all_have_answered():
    known, own = nodes(RankReport(0), RankReport(1)), Failure("program-failed", "x", rank=1)
    known[0].status.answered = 0
    assert verdict(known, own) is None
    assert verdict(known, own, ago=root_cause.ANSWERS_S + 1).rank == 1, (
        "nor is an answer waited for without end"
    )


@pytest.mark.parametrize(
    "log", [log for log in LOGS if log["cause"] == "peer-lost"], ids=lambda log: log["name"]
)
def test_the_lost_node_is_the_culprit_and_not_the_survivor(log):
    known = nodes(RankReport(0, failed=True))
    known.append(
        Node(Status("run", NodeInfo(node=1, pod="run-1")), NOW, lost="closed the connection")
    )
    found = verdict(known, lost_peer(0))
    assert found.cause == "node-lost" and found.reason.startswith("node 1 (pod run-1)")


def timed_out(rank: int) -> Failure:
    return Failure("collective-timeout", "Timed out", rank=rank)


def test_different_collectives_of_the_same_number_are_shown():
    last = [
        {"0": {"number": 3, "op": "all_reduce", "sizes": size, "types": "f"}}
        for size in ("[[4]]", "[[5]]")
    ]
    known = nodes(*(RankReport(n, waits=True, last=last[n], failed=True) for n in (0, 1)))
    reason = verdict(known, timed_out(0), timed_out(1)).reason
    assert "[[4]]" in reason and "[[5]]" in reason


@pytest.mark.parametrize(("line", "differ"), [(1, False), (2, True)])
def test_a_rank_that_still_waits_and_one_that_timed_out_there_are_at_the_same_place(line, differ):
    words = ("waits in all_reduce at a.py:1 in f", f"timed out at a.py:{line} in f")
    found = stacks.table([RankReport(n, words=words[n], waits=True) for n in (0, 1)])
    assert any("different" in each for each in found) is differ


def test_a_stack_that_is_too_deep_is_not_walked_to_its_end():
    frame, code = None, SimpleNamespace(co_filename="a.py", co_name="f")
    for _ in range(python_hook.DEEP + 5):
        frame = SimpleNamespace(f_back=frame, f_lineno=1, f_code=code)
    found = python_hook.stack(frame)
    assert len(found) <= python_hook.FRAMES and found[0] == ["a.py", 1, "f"]
    assert not stacks.has_ended([{"main": True, "stack": found}])
