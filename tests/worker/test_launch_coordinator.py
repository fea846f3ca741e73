"""What node 0 orders, given what the nodes have told and the time: no process and no socket."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuworker.launch.command_line import read_arguments
from gpuworker.launch.config import read_config
from gpuworker.launch.coordinator import SPEED_S, Coordinator
from gpuworker.launch.failure_causes import Failure
from gpuworker.launch.protocol import NodeInfo, NodeState, RankReport, Status
from gpuworker.launch.root_cause import SUSPECT_S, Node
from tests.helpers.launchers import CONTRACT

OWN = Failure("program-failed", "exit code 9", rank=1)
PEER = Failure("peer-lost", "Connection closed", rank=0)


class Nodes:
    """Two nodes of one rank each, and the coordinator; a clock that the test moves."""

    def __init__(self, *flags: str):
        environ = CONTRACT | {"NNODES": "2", "NPROC_PER_NODE": "1", "ATTEMPT": "0"}
        config = read_config(read_arguments([*flags, "--join-timeout=60", "-m", "p"])[0], environ)
        self.now, self.coordinator = 10_000.0, Coordinator(config, 10_060.0)
        self.nodes: list[Node] = []

    def join(self, index: int, **info: object) -> str:
        status = Status("llm", NodeInfo(node=index, pod=f"run-{index}", **info))
        self.nodes.append(Node(status, self.now))
        return self.coordinator.join(self.nodes[-1], self.now)

    def tell(self, index: int, **changes: object) -> None:
        status = replace(self.nodes[index].status, **changes)
        self.coordinator.hear(self.nodes[index], status, self.now)

    def after(self, seconds: float = 0.1):
        """The orders, after some time in which both nodes lived."""
        self.now += seconds
        for node in self.nodes:
            node.heard_at = self.now
        self.coordinator.decide(self.now)
        return self.coordinator.orders

    def answer(self, *reports: RankReport) -> None:
        for index, report in enumerate(reports):
            self.tell(index, answered=self.coordinator.orders.question, reports=[report])


@pytest.fixture
def run() -> Nodes:
    return started(Nodes())


def started(run: Nodes) -> Nodes:
    assert run.join(0) == run.join(1) == ""
    assert run.after().go
    for index in range(2):
        run.tell(index, state=NodeState.RUNNING)
    return run


def test_a_pod_that_comes_back_alone_is_rejected(run):
    assert run.join(1) and not run.after().verdict


def test_the_start_of_a_run_is_progress_however_long_the_machine_is_up():
    run = Nodes()
    run.join(0)
    run.join(1)
    assert run.after().go
    assert not run.after().frames, "no node has told yet that its ranks run"


def test_a_failure_is_asked_about_and_then_the_verdict(run):
    run.tell(0, failures=[PEER])
    assert run.after().question == 1
    run.answer(RankReport(0, failed=True), RankReport(1))
    assert not run.after().verdict, "rank 1 works, and may say why"
    run.tell(1, failures=[OWN])
    assert (run.after().verdict.cause, run.after().verdict.rank) == ("program-failed", 1)


def test_a_rank_that_never_says_why_is_not_waited_for_without_end(run):
    run.tell(0, failures=[PEER])
    run.after()
    run.answer(RankReport(0, failed=True), RankReport(1))
    assert run.after(SUSPECT_S + 1).verdict.cause == "peer-lost"


def test_a_lack_of_progress_is_shown_once_or_is_the_end(run, capsys):
    limit = run.coordinator.config.progress_timeout
    assert run.after(limit + 1).frames
    run.answer(
        RankReport(0, words="is at a.py:1", stack="s"),
        RankReport(1, words="is at a.py:1", stack="s"),
    )
    assert "a.py:1" in run.after().stacks and not run.after(limit).verdict
    ends = started(Nodes("--progress-action=end"))
    ends.after(limit + 1)
    ends.after()
    ends.answer(RankReport(0, words="is at a.py:1"), RankReport(1, words="is at a.py:2"))
    assert ends.after().verdict.cause == "no-progress" and "a.py:2" in ends.after().verdict.reason


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (((0, 0), (600, 600)), ["step=600", "steps_per_second=1.99"]),
        (((0, 0), (300, 200)), ["step=300", "steps_per_second=0.8", "slow_ranks=1"]),
        (((0, 0), (0, 0)), []),
        (((500, 500), (0, 0)), []),  # the program has started again
        (((0,), (100, 100)), []),  # a node that had not told
    ],
)
def test_the_speed_is_logged_with_the_ranks_that_are_slow(run, capsys, steps, said):
    for known in steps:
        run.answer(*(RankReport(rank, steps=made) for rank, made in enumerate(known)))
        run.after(SPEED_S + 1)
    lines = [line for line in capsys.readouterr().out.splitlines() if "[STEP]" in line]
    assert len(lines) == bool(said) and all(words in lines[0] for words in said)
    assert not said or ("slow_ranks" in lines[0]) == (len(said) == 3)


def test_a_frozen_node_0_is_the_cause_although_the_others_left_it(run):
    run.coordinator.leave(run.nodes[1])
    run.coordinator.resume(run.now, 70.0)
    verdict = run.coordinator.orders.verdict
    assert (
        verdict.cause == "node-lost"
        and "node 0" in verdict.reason
        and "node 1" not in verdict.reason
    )
    short = started(Nodes())
    short.coordinator.resume(short.now, 3.0)
    assert not short.after().verdict
