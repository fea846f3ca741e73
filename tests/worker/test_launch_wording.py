"""The wording of ddp-launch: help, problems, verdicts and log lines, compared with tests/golden/launch.txt."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from gpuworker.launch import launcher, network, node_info, root_cause, statefulset
from gpuworker.launch.config import parser, read_config
from gpuworker.launch.coordinator import Coordinator
from gpuworker.launch.failure_causes import Verdict
from gpuworker.launch.protocol import NodeInfo, NodeState, RankFailure
from gpuworker.launch.rank_state import RankState
from gpuworker.launch.root_cause import NodeStatus
from tests.helpers import golden
from tests.helpers.launchers import CONTRACT


def reason(call: Callable[..., object], *args: object) -> str:
    """Cause and reason of the verdict that a call raises."""
    with pytest.raises(Verdict) as found:
        call(*args)
    return f"{found.value.code} {found.value.cause.key}: {found.value.reason}"


def info(node: int = 0, **facts: object) -> NodeInfo:
    return NodeInfo(**{"node": node, "pod": f"run-{node}", "host": f"n{node}", "torch": "2.14.1", "nnodes": 3} | facts)


def configuration(*flags: str, **variables: str):
    return read_config(parser().parse_args([*flags, "--", "-m", "prog"]), CONTRACT | {"NNODES": "3"} | variables)


def usage_problems() -> list[str]:
    flags = ["--join-timeout=0", "--min-shm=lots", "--output-dir=/no/such", "--backend=etcd", "--", "no-such.py"]
    wrong = {"NNODES": "two", "NODE_RANK": "", "NPROC_PER_NODE": "0", "MASTER_PORT": "80", "MASTER_ADDR": ""}
    too_many = parser().parse_args(["--", "-m", "prog"])
    return [
        reason(read_config, parser().parse_args(flags), wrong),
        reason(read_config, too_many, CONTRACT | {"NODE_RANK": "4"}),
    ]


def ports() -> list[str]:
    answers = [(TimeoutError(), None), (ConnectionResetError(), None), (ConnectionRefusedError(111, ""), None),
               (None, None), (None, b""), (None, b"HTTP/1.1 400 Bad Request\r\n")]  # fmt: skip
    return [": ".join(network.classify_port_failure(error, answer)) for error, answer in answers]


def nodes_that_differ() -> list[str]:
    config = configuration("--min-shm=16Gi", "--min-disk=1Gi", NUM_GPUS_PER_NODE="8")
    disk = {"disk_path": "/out", "disk_bytes": 2**20}
    skewed = [info(0), info(1, clock_skew=60.4), info(2)]
    node_0_skewed = [info(0), info(1, clock_skew=60.4), info(2, clock_skew=60)]
    return [
        reason(node_info.check_self, config, info(1, torch="", gpus=7, shm_bytes=64 * 2**20, **disk)),
        reason(node_info.compare, config, [info(0), info(1, image="train:2"), info(2)]),
        reason(node_info.compare, config, [info(n, torch="2.5.1" if n > 9 else "2.14.1") for n in range(21)]),
        reason(node_info.compare, config, skewed),
        reason(node_info.compare, config, node_0_skewed),
    ]


def joined(*numbers: int, **facts: object) -> dict[int, NodeStatus]:
    return {number: NodeStatus(info(number), SimpleNamespace(write=len), 100.0, **facts) for number in numbers}


def coordinator(nodes: dict[int, NodeStatus], *flags: str, started_at: float = 0.0, **variables: str) -> Coordinator:
    made = Coordinator(configuration(*flags, **variables), 100.0)
    made.nodes, made.started_at = nodes, started_at
    return made


def nodes_that_are_missing() -> list[str]:
    twice = coordinator(joined(0, 1))
    old, new = joined(1)[1], NodeStatus(info(1, pod="run-1-again"), None, 100.0)
    twice.duplicate = (old, new, 90.0)
    lost = coordinator(joined(0, 1, 2), "--heartbeat-timeout=15", started_at=100.0)
    lost.failed_at = 100.0
    unformed = coordinator(joined(0, 1, 2, state=NodeState.READY), "--rendezvous-timeout=30", started_at=100.0)
    unformed.nodes[0].state = NodeState.FORMED
    return [
        reason(coordinator(joined(0)).check_join, 101.0),
        reason(coordinator(joined(0), NNODES="64").check_join, 101.0),
        reason(coordinator(joined(0, 1, 2)).check_join, 101.0),
        reason(twice.check_join, 100.0),
        reason(lost.check_run, 116.0),
        reason(unformed.check_run, 131.0),
    ]


def rank_failures() -> list[str]:
    raised = {"reason": "ValueError: loss is NaN\nin batch 7", "location": "train.py:7 in backward", "errno": None}
    watchdog = "ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, "
    ranks = [
        RankState(3, code=9, tail=["bad flag"]),
        RankState(3, code=1, ending={"text": "no data under /data", "threads": []}),
        RankState(3, code=-signal.SIGKILL, tail=["step 5", ""]),
        RankState(3, code=-signal.SIGSEGV),
        RankState(3, code=-signal.SIGABRT, tail=[""], evidence={watchdog + "OpType=ALLREDUCE) ran for 600001 ms": 0.0}),
        RankState(3, error=raised | {"kinds": ["builtins.ValueError"]}),
    ]
    failures = [(rank, False) for rank in ranks] + [(ranks[2], True)]
    return [f"{found.cause}: {found.detail}" for found in (rank.failure(oom) for rank, oom in failures)]


def run_verdicts() -> list[str]:
    def verdict(nodes: dict[int, NodeStatus], lost: dict[int, str] | None = None) -> str:
        found = root_cause.failed(nodes, lost or {}, 60.0, 160.0)
        return f"{found.code} {found.cause.key}: {found.reason}"

    exited = joined(0, 1, 2)
    exited[1].failure = RankFailure("program-failed", 3, "exit code 9; last line: bad flag")
    timed_out = joined(0, 1, 2)
    timed_out[0].failure = RankFailure("collective-timeout", 0, "RuntimeError: timed out (train.py:30 in step)")
    timed_out[0].stacks = {"0": "timed out at train.py:30 in step", "1": "is stopped by a signal (SIGSTOP)"}
    different = joined(0, 1, 2)
    different[0].failure = timed_out[0].failure
    for node, name in ((0, "barrier at train.py:9 in evaluate"), (1, "all_reduce at train.py:30 in step")):
        different[node].stacks = {str(node): f"waits in {name}"}
    different[2].stacks, different[0].sequences = {"2": "waits in all_reduce at train.py:30 in step"}, {"0": {"1": 7}}
    different[1].sequences = {"1": {"1": 8}}
    early = joined(0, 1, 2)
    early[0].failure = timed_out[0].failure
    early[1].stacks = {"2": root_cause.ENDED_WELL[0]}
    silent = joined(0)
    silent[0].failure = timed_out[0].failure
    return [
        verdict(exited),
        verdict(timed_out),
        verdict(different),
        verdict(early),
        verdict(silent),
        verdict(joined(0, 1, 2), {1: "closed the connection without a report"}),
    ]


def stops() -> list[str]:
    some, all_saved = joined(0, 1, 2), joined(0, 1, 2, state=NodeState.SAVED)
    some[1].state = NodeState.SAVED
    found = [root_cause.stopped("node 0 (pod run-0 on n0) got SIGTERM", nodes) for nodes in (some, all_saved)]
    found += [root_cause.asked_for_restart(configuration(ATTEMPT=attempt), asked(attempt)) for attempt in ("0", "7")]
    return [f"{verdict.code} {verdict.cause.key}: {verdict.reason}" for verdict in found]


def asked(attempt: str) -> dict[int, NodeStatus]:
    nodes = joined(0, 1, state=NodeState.SAVED)
    for node in nodes.values():
        node.progressed = attempt == "0"
    return nodes


def last_lines(capsys, termination_log) -> str:
    for verdict in (
        None,
        Verdict("node-missing", "node 1 did not join", "preflight"),
        Verdict("saved", "saved", "run"),
    ):
        launcher.report(configuration(), verdict, 12.5)
    return capsys.readouterr().out + termination_log.read_text()


def idle_lines(capsys, tmp_path, monkeypatch) -> str:
    class Idle(BaseException):
        """In place of the wait for a signal."""

    def idle(_: object) -> None:
        raise Idle

    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: None)
    monkeypatch.setattr(signal, "sigwait", idle)
    for code in (0, 9):
        with pytest.raises(Idle):
            statefulset.finish(tmp_path, 0, code)
    return capsys.readouterr().out


SECTIONS = {
    "flags and variables that are wrong": usage_problems,
    "a port that is not the coordinator's": ports,
    "nodes that differ or are unfit": nodes_that_differ,
    "nodes that are missing, duplicate or lost": nodes_that_are_missing,
    "failures of ranks": rank_failures,
    "verdicts on a failed run": run_verdicts,
    "verdicts on a stopped run": stops,
}


def test_the_wording_is_the_golden_file_s(capsys, tmp_path, termination_log, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NODE_RANK", "1")
    sections = {title: "\n".join(lines()) for title, lines in SECTIONS.items()}
    sections["last lines and the termination message"] = last_lines(capsys, termination_log)
    sections["lines of a pod that idles"] = idle_lines(capsys, tmp_path, monkeypatch)
    sections["ddp-launch --help"] = parser().format_help()
    golden.check("launch.txt", "\n".join(f"## {title}\n{text.rstrip()}\n" for title, text in sections.items()))
