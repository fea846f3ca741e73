"""Failures of NCCL in the words of public reports, from a rank's output to the cause and the culprit."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from gpuworker.launch import root_cause
from gpuworker.launch.protocol import NodeInfo, RankFailure
from gpuworker.launch.rank_runner import Output
from gpuworker.launch.rank_state import RankState
from gpuworker.launch.root_cause import NodeStatus

LOGS = yaml.safe_load(Path(__file__).with_name("nccl_logs.yaml").read_text())
FRAME = "frame #7: c10d::ProcessGroupNCCL::watchdogHandler() + 0x1da (0x7f30 in /usr/lib/libtorch_cuda.so)\n"


def rank_after(log: dict, tmp_path: Path, number: int = 3) -> RankState:
    """The rank as its launcher knows it once the log's output has gone through the rank's runner."""
    descriptor = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    output = Output(number, descriptor, False, None)
    output.write = lambda _: None
    for line in log.get("prints", []):
        text = FRAME * int(line.split()[1]) if line.startswith("frames: ") else f"{line}\n"
        output.take(text.encode())
    os.close(descriptor)
    state = RankState(number)
    for line, at in output.evidence.items():
        state.on_evidence(line, at)
    if "raises" in log:
        kind, text = log["raises"]
        reason = f"{kind.rpartition('.')[2]}: {text}"
        state.error = {"kinds": [kind], "reason": reason, "errno": None, "location": "train.py:9 in step"}
    state.on_end(-log["signal"] if "signal" in log else 1, output.lines(), output.evidence)
    return state


@pytest.mark.parametrize("log", LOGS, ids=[log["name"] for log in LOGS])
def test_the_cause_is_found(log, tmp_path):
    failure = rank_after(log, tmp_path).failure(oom=False)
    assert failure.cause == log["cause"], failure
    assert all(word in failure.detail for word in log.get("words", [])), failure


@pytest.mark.parametrize("log", [log for log in LOGS if log["cause"] == "peer-lost"], ids=lambda log: log["name"])
def test_the_lost_node_is_the_culprit_and_not_the_survivor(log, tmp_path):
    """The survivor's words reach the coordinator before, at and after the loss of the other node."""
    for lost in (False, True):
        nodes = {n: NodeStatus(NodeInfo(node=n, pod=f"run-{n}"), SimpleNamespace(), 100.0) for n in (0, 1)}
        nodes[0].failure = rank_after(log, tmp_path).failure(oom=False)
        verdict = root_cause.failed(nodes, {1: "closed the connection"} if lost else {}, 60.0, 101.0)
        assert verdict.cause.key == ("node-lost" if lost else "peer-lost")
        assert not lost or verdict.reason.startswith("node 1 (pod run-1)")


def test_the_rank_that_is_behind_is_named(tmp_path):
    """Rank 1 has enqueued one collective less than the others, which is what they wait for."""
    line = (
        "[rank{0}]:[E1 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Exception (either an error "
        "or timeout) detected by watchdog at work: {1}, last enqueued NCCL work: {2}, last completed NCCL work: 806."
    )
    nodes = {n: NodeStatus(NodeInfo(node=n, pod=f"run-{n}"), SimpleNamespace(), 100.0) for n in (0, 1, 2)}
    for rank, enqueued in ((0, 808), (1, 807), (2, 808)):
        state = RankState(rank, code=-6)
        state.on_evidence(line.format(rank, 808, enqueued), 0.0)
        nodes[rank].sequences = {str(rank): state.sequence}
        nodes[rank].stacks = {str(rank): "has ended by SIGABRT"}
    assert "rank 1 (807)" in root_cause.format_locations(nodes)


HARMLESS = (
    "[W1123 15:17:42.98 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3",
    "[W1123 15:17:42.98 socket.cpp:752] [c10d] The client socket has failed to connect to [pod-0]:29500 "
    "(errno: 111 - Connection refused).",
    "run-0:9:31 [0] misc/socket.cc:50 NCCL WARN Call to connect returned Connection refused, retrying",
    'run-0:9:31 [0] init.cc:40 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to hang!',
    "[rank3]:[W1123 15:17:42.98 ProcessGroupNCCL.cpp:4715] [PG ID 0 PG GUID 0 Rank 3] using GPU 0 as device used by "
    "this process is currently unknown. This can potentially cause a hang if this rank to GPU mapping is incorrect.",
)


def test_a_remark_of_c10d_or_nccl_is_neither_the_cause_nor_the_last_line(tmp_path):
    for remark in HARMLESS:
        failure = rank_after({"prints": [remark, "bad flag"]}, tmp_path).failure(oom=False)
        assert failure.cause == "program-failed" and failure.detail == "exit code 1; last line: bad flag", remark


def test_the_failure_is_found_after_many_remarks(tmp_path):
    """A long run prints them again and again; the line that counts comes last."""
    watchdog = (
        "[rank3]:[E1 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(1)"
    )
    prints = [*HARMLESS * 100, watchdog]
    assert rank_after({"prints": prints, "signal": 6}, tmp_path).failure(oom=False).cause == "collective-timeout"


LOST = "[W1 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=3): Connection reset by peer"


def test_a_program_that_ends_itself_did_not_lose_a_connection():
    ending = {"text": "no more data", "threads": []}
    own = RankState(3, code=3, ending=ending, evidence={LOST: 0.0})
    assert own.failure(oom=False).cause == "program-failed"
    assert RankState(3, code=3, evidence={LOST: 0.0}).failure(oom=False).cause == "peer-lost"


def test_what_was_printed_long_before_the_last_step_did_not_end_the_rank():
    state = RankState(3, code=9, tail=["bad flag"], evidence={LOST: 100.0}, stepped_at=500.0)
    assert state.failure(oom=False) == RankFailure("program-failed", 3, "exit code 9; last line: bad flag")
    state.on_evidence(LOST, 495.0)
    assert state.failure(oom=False).cause == "peer-lost"
