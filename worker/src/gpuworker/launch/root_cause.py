"""The judge on node 0: from what nodes and ranks report to the one cause of the end.

It does not wait for reports, it asks: at the first failure every rank is asked where it is, how
many collectives it has started and which exception it handles, until the answers decide.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field, replace

from gpuworker.launch import stacks
from gpuworker.launch.config import LaunchConfig
from gpuworker.launch.failure_causes import Failure
from gpuworker.launch.protocol import (
    HEARTBEAT_S,
    NAMED,
    NodeInfo,
    NodeState,
    RankReport,
    Status,
    first,
)
from gpuworker.runtime.contract import ExitCode

ANSWERS_S = 5.0  # for the answers of all nodes; one without a heartbeat may be lost
SILENT_S = 3 * HEARTBEAT_S
# For the failure of a rank that works or cleans up while all others report it only: torchrun's own
# time between SIGTERM and SIGKILL.
SUSPECT_S = 30.0
SIGNAL_S = 2.0  # for the launcher to get the signal that has already ended a rank of its pod


@dataclass
class Node:
    """A node, as node 0 knows it. Times are of the monotonic clock."""

    status: Status
    heard_at: float
    lost: str = ""  # how, since the start
    progress_at: float = 0.0
    reports: list[RankReport] = field(default_factory=list)  # the last ones, of all its ranks

    @property
    def info(self) -> NodeInfo:
        return self.status.info

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def running(self) -> bool:
        return self.status.state in (NodeState.JOINED, NodeState.RUNNING)

    def forget(self) -> None:
        """Its program ends, to start anew."""
        self.status = replace(self.status, state=NodeState.RUNNING, failures=[])
        self.reports = []


def named(name: str, failure: Failure) -> Failure:
    """`rank 3 of node 1 (pod … on …): exit code 9; last line: …`"""
    who = name if failure.rank is None else f"rank {failure.rank} of {name}"
    return replace(failure, reason=f"{who}: {failure.reason}")


def of_error(error: Exception, where: str = "") -> Failure:
    """An error on a node as a failure: it is one, or it is the launcher's own."""
    if isinstance(error, Failure):
        return error
    traceback.print_exception(error)
    return Failure("launcher-failed", f"{where}{type(error).__name__}: {error}")


def failed(
    nodes: list[Node], failures: list[Failure], asked: bool, since_s: float, now: float
) -> Failure | None:
    """The verdict on a run in which something failed; None while answers may still change it.

    `failures`: in the order of their arrival, the first one `since_s` ago. `asked`: all have
    answered since.
    """
    if not asked and since_s < ANSWERS_S:
        return None
    if own := known(nodes, failures):
        return None if own.asked and since_s < SIGNAL_S else own
    reports, silent_since = all_reports(nodes), now - SILENT_S
    silent = [n for n in nodes if n.running and not n.lost and n.heard_at < silent_since]
    if since_s < SUSPECT_S and (silent or any(report.busy for report in reports)):
        return None  # whoever the others have lost will report, or is lost itself
    flying = [named(each.node, each.flying) for each in reports if each.flying]
    culprits = [each for each in flying if not each.row.secondary]
    return of_first((culprits or failures)[0], reports)


def of_first(failure: Failure, reports: list[RankReport]) -> Failure:
    """The verdict, given the first failure."""
    reason, timed_out = failure.reason, failure.cause == "collective-timeout"
    early = [each for each in reports if each.code in (0, 75)]
    importing = [each for each in reports if each.importing]
    if early and (timed_out or failure.row.secondary):
        return Failure("early-exit", f"{describe(early)} while others still worked: {reason}")
    if importing and timed_out:
        reason = f"{describe(importing)}; {reason}"
        return Failure("slow-import", reason, importing[0].rank)
    if failure.code == ExitCode.HANG and failure.cause != "exit-timeout":
        places = "; ".join(stacks.table(reports, NAMED)) or "no rank reported where it was"
        return replace(failure, reason=f"{places}; {reason}")  # first whom the others wait for
    return failure


def describe(reports: list[RankReport]) -> str:
    return first([f"{each.name} {each.words}" for each in reports])


def all_reports(nodes: list[Node]) -> list[RankReport]:
    return [report for node in nodes for report in node.reports]


def known(nodes: list[Node], failures: list[Failure]) -> Failure | None:
    """The verdict if something failed by itself; None if all only report the failure of others."""
    own = next((each for each in failures if not each.row.secondary), None)
    lost = node_lost(nodes)
    if own and not (lost and own.cause == "collective-timeout"):
        return of_first(own, all_reports(nodes))
    return lost


def node_lost(nodes: list[Node]) -> Failure | None:
    """The verdict if nodes were lost before their ranks had ended."""
    lost = [f"{node.name} {node.lost}" for node in nodes if node.lost and node.running]
    return Failure("node-lost", first(lost)) if lost else None


def stopped(reason: str, nodes: list[Node]) -> Failure:
    """The verdict on a run that was stopped from outside."""
    ended_well = (NodeState.DONE, NodeState.SAVED)
    if unsaved := [node for node in nodes if node.status.state not in ended_well]:
        return Failure("stopped", f"{reason}; not saved on {names(unsaved)}")
    return Failure("saved", f"{reason}; all nodes saved")


def names(nodes: list[Node]) -> str:
    return first([node.name for node in nodes])


# Kubernetes counts no restart after exit code 75, with which the program may end by itself, for
# example near a limit of time, and after the loss of a node.
RESTARTS_WITHOUT_PROGRESS = 3
LONG_RUN_S = 600  # a program that ran so long has made progress


def asked_for_restart(config: LaunchConfig, nodes: list[Node]) -> Failure:
    """The verdict on a run whose ranks ended with 0 or 75 without a signal."""
    saved = names([node for node in nodes if node.status.state is NodeState.SAVED])
    progressed = any(node.status.progressed for node in nodes)
    if config.attempt >= RESTARTS_WITHOUT_PROGRESS and not progressed:
        start = f"in start {config.attempt + 1} of this run"
        return Failure("restart-loop", f"{saved} ended with 75 before a first step, {start}")
    return Failure("saved", f"{saved} ended with 75, which asks for another start")


def bounded(end: Failure, attempt: int, ran_s: float) -> Failure:
    """The verdict; after many starts another one, which counts, if a node was lost soon or is
    unfit.
    """
    few = attempt < RESTARTS_WITHOUT_PROGRESS or ran_s > LONG_RUN_S
    if few or end.cause not in ("node-lost", "node-test-failed"):
        return end
    return Failure("restart-loop", f"{end.reason}, in start {attempt + 1} of this run")
