"""The judge on node 0: from what nodes and ranks report to the one cause of the end.

It does not wait for reports, it asks: at the first failure every rank is asked where it is, how
many collectives it has started and which exception it handles, until the answers decide.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from gpuworker.launch import stacks
from gpuworker.launch.config import LaunchConfig
from gpuworker.launch.failure_causes import Failure
from gpuworker.launch.node_info import format_node
from gpuworker.launch.protocol import HEARTBEAT_S, NodeInfo, NodeState, RankReport
from gpuworker.runtime.message_auth import LineStream

ANSWERS_S = 3.0  # for the answers of all nodes; one without a heartbeat may be lost
SILENT_S = 3 * HEARTBEAT_S
# For the failure of a rank that works or cleans up while all others report it only: torchrun's own
# time between SIGTERM and SIGKILL.
SUSPECT_S = 30.0
SIGNAL_S = 2.0  # for the launcher to get the signal that has already ended a rank of its pod
NODES_NAMED = 8


@dataclass
class NodeStatus:
    """Status of one node, as the coordinator tracks it. Times are of the monotonic clock."""

    info: NodeInfo
    stream: LineStream
    last_heartbeat: float
    closed: bool = False  # its connection, and so its launcher
    state: NodeState = NodeState.JOINED
    failures: dict[int | None, tuple[float, Failure]] = field(default_factory=dict)  # by rank
    progress_at: float = 0.0
    progressed: bool = True
    answered: int = 0  # the question
    reports: dict[int, RankReport] = field(default_factory=dict)
    steps: dict = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return not self.state.running

    def forget(self, now: float) -> None:
        """Its program ends, or starts anew."""
        self.state, self.progress_at = NodeState.RUNNING, now
        self.failures, self.reports, self.steps = {}, {}, {}


def failed(
    nodes: dict[int, NodeStatus], lost: dict[int, str], failed_at: float, question: int
) -> Failure | None:
    """The verdict on a run in which something failed; None while answers may still change it.

    `lost`: node -> how. `question`: the number of the first one since the failure.
    """
    now = time.monotonic()
    reports = [(at, node, each) for node in nodes.values() for at, each in node.failures.values()]
    reports.sort(key=lambda report: report[0])
    own = [report for report in reports if not report[2].row.secondary]
    waiting = [node for index, node in nodes.items() if index not in lost and not node.closed]
    asked = all(node.answered >= question for node in waiting)
    if not asked and now < failed_at + ANSWERS_S:
        return None
    if own and own[0][2].asked and now < failed_at + SIGNAL_S:
        return None
    if own and not (lost and own[0][2].cause == "collective-timeout"):
        return of_first(nodes, *own[0][1:])
    if lost:
        return node_lost(nodes, lost)
    ranks = [(node, each) for node in nodes.values() for each in node.reports.values()]
    silent = any(node.state.running and now > node.last_heartbeat + SILENT_S for node in waiting)
    if not own and now < failed_at + SUSPECT_S and (silent or any(r.busy for _, r in ranks)):
        return None  # whoever the others have lost will report, or is lost itself
    flying = [(node, rank.flying) for node, rank in ranks if rank.flying]
    culprits = [pair for pair in flying if not pair[1].row.secondary]
    return of_first(nodes, *(culprits or [reports[0][1:]])[0])


def of_first(nodes: dict[int, NodeStatus], node: NodeStatus, failure: Failure) -> Failure:
    """The verdict, given the failure of the first rank."""
    reason = format_failure(node, failure)
    reports = all_reports(nodes)
    consequence = failure.row.secondary or failure.cause == "collective-timeout"
    early = [r for r, (each, _) in reports.items() if each.code in (0, 75)] if consequence else []
    if early:
        first = ", ".join(
            f"rank {rank} of {reports[rank][1]} {stacks.describe(reports[rank][0])}"
            for rank in early[:NODES_NAMED]
        )
        return Failure("early-exit", f"{first} while others still worked: {reason}")
    if failure.cause != "collective-timeout":
        return Failure(failure.cause, reason, failure.phase, failure.rank)
    importing = [r for r, (each, _) in reports.items() if each.state == "importing"]
    if importing:
        slow = ", ".join(f"rank {rank} of {reports[rank][1]} {stacks.describe(reports[rank][0])}"
                         for rank in importing[:NODES_NAMED])  # fmt: skip
        return Failure("slow-import", f"{slow}; {reason}", "rendezvous", importing[0])
    return Failure(failure.cause, f"{reason}; {format_places(nodes)}", failure.phase, failure.rank)


def all_reports(nodes: dict[int, NodeStatus]) -> dict[int, tuple[RankReport, str]]:
    return {
        rank: (report, format_node(node.info))
        for _, node in sorted(nodes.items())
        for rank, report in node.reports.items()
    }


def format_places(nodes: dict[int, NodeStatus]) -> str:
    return "; ".join(stacks.table(all_reports(nodes))) or "no rank reported where it was"


def known(nodes: dict[int, NodeStatus], lost: dict[int, str]) -> Failure | None:
    """The verdict on a run that had failed when it was stopped; None if a stop may explain it."""
    if lost:
        return node_lost(nodes, lost)
    found = [
        (at, node, each)
        for node in nodes.values()
        for at, each in node.failures.values()
        if not each.asked and not each.row.secondary
    ]
    first = min(found, key=lambda report: report[0], default=None)
    return of_first(nodes, *first[1:]) if first else None


def node_lost(nodes: dict[int, NodeStatus], lost: dict[int, str]) -> Failure:
    named = [f"{format_node(nodes[index].info)} {how}" for index, how in sorted(lost.items())]
    return Failure("node-lost", ", ".join(named[:NODES_NAMED]))


def format_failure(node: NodeStatus, failure: Failure) -> str:
    """`rank 3 of node 1 (pod … on …): exit code 9; last line: …`"""
    name = format_node(node.info)
    if failure.rank is None:
        return f"{failure.reason}, as seen by {name}" if failure.cause == "node-lost" else (
            failure.reason if name in failure.reason else f"{name}: {failure.reason}"
        )  # fmt: skip
    return f"rank {failure.rank} of {name}: {failure.reason}"


def stopped(reason: str, nodes: dict[int, NodeStatus], lost: dict[int, str]) -> Failure:
    """The verdict on a run that was stopped from outside. What went wrong while saving is it."""
    if found := known(nodes, lost):
        return found
    ended_well = (NodeState.DONE, NodeState.SAVED)
    unsaved = [format_node(n.info) for _, n in sorted(nodes.items()) if n.state not in ended_well]
    if unsaved:
        named = ", ".join(unsaved[:NODES_NAMED])
        return Failure("stopped", f"{reason}; not saved on {named}")
    return Failure("saved", f"{reason}; all nodes saved")


# Kubernetes counts no restart after exit code 75, with which the program may end by itself, for
# example near a limit of time, and after the loss of a node.
RESTARTS_WITHOUT_PROGRESS = 3
LONG_RUN_S = 600  # a program that ran so long has made progress


def asked_for_restart(config: LaunchConfig, nodes: dict[int, NodeStatus]) -> Failure:
    """The verdict on a run whose ranks ended with 0 or 75 without a signal."""
    saved = [format_node(n.info) for _, n in sorted(nodes.items()) if n.state is NodeState.SAVED]
    named = ", ".join(saved[:NODES_NAMED])
    progressed = any(node.progressed for node in nodes.values())
    if config.attempt >= RESTARTS_WITHOUT_PROGRESS and not progressed:
        start = f"in start {config.attempt + 1} of this run"
        return Failure("restart-loop", f"{named} ended with 75 before a first step, {start}")
    return Failure("saved", f"{named} ended with 75, which asks for another start")


def bounded(end: Failure, attempt: int, ran_s: float) -> Failure:
    """The verdict; after many starts another one, which counts, if a node was lost soon."""
    if end.cause != "node-lost" or attempt < RESTARTS_WITHOUT_PROGRESS or ran_s > LONG_RUN_S:
        return end
    return Failure("restart-loop", f"{end.reason}, in start {attempt + 1} of this run")
