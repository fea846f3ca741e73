"""Root cause: from what the nodes reported to the verdict of the run.

Order of evidence: a node whose connection closed; the first failure that is not only a report of another one; a rank
that had ended while others waited for it; and for a hang, where all ranks were.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuworker.launch.config import LaunchConfig
from gpuworker.launch.failure_causes import BY_KEY, Verdict
from gpuworker.launch.node_info import format_node
from gpuworker.launch.protocol import HEARTBEAT_S, End, NodeInfo, NodeState, RankFailure
from gpuworker.runtime.message_auth import LineStream

# Seconds to wait for more reports: for a root cause, and while all reports are secondary.
SETTLE_S, SECONDARY_SETTLE_S = 2.0, 6.0
SILENT_S = 3 * HEARTBEAT_S  # a node without a heartbeat for so long may be lost
ENDED_WELL = ("has ended with 0", "has ended with 75")
RANKS_NAMED = 8


@dataclass
class NodeStatus:
    """Status of one node, as the coordinator tracks it."""

    info: NodeInfo
    stream: LineStream
    last_heartbeat: float  # by the monotonic clock
    closed: bool = False  # its connection, and so its launcher
    state: NodeState = NodeState.JOINED
    failure: RankFailure | None = None
    failed_at: float = 0.0
    progress_at: float = 0.0
    progressed: bool = True
    stacks: dict[str, str] = field(default_factory=dict)  # rank -> where in the program it is
    sequences: dict[str, dict] = field(default_factory=dict)  # rank -> process group -> collectives started


def failed(nodes: dict[int, NodeStatus], lost: dict[int, str], elapsed_s: float, now: float) -> Verdict | None:
    """The verdict on a failed run; None while more reports may arrive."""
    reports = sorted((n for n in nodes.values() if n.failure), key=lambda n: n.failed_at)
    roots = [n for n in reports if not BY_KEY[n.failure.cause].secondary]
    if elapsed_s < SETTLE_S:
        return None
    if lost:
        return node_lost(nodes, lost)
    if not roots:
        silent = any(n.state.running and now > n.last_heartbeat + SILENT_S for n in nodes.values())
        if elapsed_s < SECONDARY_SETTLE_S or silent:  # it comes back, or is lost at the heartbeat time-out
            return None
    first = roots[0] if roots else reports[0]
    if first.failure.cause == "node-lost":
        return Verdict("node-lost", f"{first.failure.detail}, as seen by {format_node(first.info)}", "run")
    early = [(rank, n) for _, n in sorted(nodes.items()) for rank, where in n.stacks.items() if where in ENDED_WELL]
    if early and (not roots or first.failure.cause == "collective-timeout"):
        named = ", ".join(f"rank {rank} of {format_node(n.info)} {n.stacks[rank]}" for rank, n in early[:RANKS_NAMED])
        return Verdict("early-exit", f"{named} while others still worked: {format_failure(first)}", "run")
    reason = format_failure(first)
    if first.failure.cause == "collective-timeout":
        reason += f"; {format_locations(nodes)}"
    return Verdict(first.failure.cause, reason, first.failure.phase)


def known(nodes: dict[int, NodeStatus], lost: dict[int, str]) -> Verdict | None:
    """The verdict on a run that had failed when it was stopped; None if what is known may follow from the stop."""
    if lost:
        return node_lost(nodes, lost)
    found = [n for n in nodes.values() if n.failure and not n.failure.stopped and not BY_KEY[n.failure.cause].secondary]
    first = min(found, key=lambda n: n.failed_at, default=None)
    return Verdict(first.failure.cause, format_failure(first), first.failure.phase) if first else None


def node_lost(nodes: dict[int, NodeStatus], lost: dict[int, str]) -> Verdict:
    named = ", ".join(f"{format_node(nodes[index].info)} {how}" for index, how in sorted(lost.items())[:RANKS_NAMED])
    return Verdict("node-lost", named, "run")


def format_failure(node: NodeStatus) -> str:
    """`rank 3 of node 1 (pod … on …): exit code 9; last line: …`"""
    rank = f"rank {node.failure.rank} of " if node.failure.rank is not None else ""
    return f"{rank}{format_node(node.info)}: {node.failure.detail}"


def format_locations(nodes: dict[int, NodeStatus]) -> str:
    """Where every rank is, ranks at the same place together; those that do not wait for others are first."""
    together: dict[str, list[tuple[int, NodeStatus]]] = {}
    for _, node in sorted(nodes.items()):
        for rank, where in node.stacks.items():
            together.setdefault(where, []).append((int(rank), node))
    waiting = [where for where in together if where.startswith(("waits in ", "timed out at "))]
    behind = format_behind(nodes)
    parts = [behind] if behind else []
    if len(waiting) > 1 and len(waiting) == len(together):
        parts.append("ranks wait in different collectives")
    order = sorted(together, key=lambda where: (where in waiting, len(together[where]), min(together[where])[0]))
    for where in order[:RANKS_NAMED]:
        ranks = sorted(together[where], key=lambda item: item[0])
        if len(ranks) == 1:
            parts.append(f"rank {ranks[0][0]} of {format_node(ranks[0][1].info)} {where}")
        else:
            named = ", ".join(str(rank) for rank, _ in ranks[:RANKS_NAMED]) + (
                ", …" if len(ranks) > RANKS_NAMED else ""
            )
            parts.append(f"{len(ranks)} ranks ({named}): {where}")
    if len(order) > RANKS_NAMED:
        parts.append(f"{len(order) - RANKS_NAMED} more places")
    return "; ".join(parts) or "no rank reported where it was"


def format_behind(nodes: dict[int, NodeStatus]) -> str:
    """Ranks that have started fewer collectives of a process group than others: those that the others wait for."""
    counts: dict[str, dict[int, int]] = {}
    for node in nodes.values():
        for rank, groups in node.sequences.items():
            for group, number in groups.items():
                counts.setdefault(group, {})[int(rank)] = number
    for group, numbers in sorted(counts.items()):
        most = max(numbers.values())
        late = sorted(rank for rank, number in numbers.items() if number < most)
        if late and len(numbers) > 1:
            named = ", ".join(f"rank {rank} ({numbers[rank]})" for rank in late[:RANKS_NAMED])
            return f"behind the others, which have started {most} collectives of process group {group}: {named}"
    return ""


def stopped(reason: str, nodes: dict[int, NodeStatus]) -> Verdict:
    """The verdict on a run that was stopped from outside."""
    ended_well = (NodeState.DONE, NodeState.SAVED)
    unsaved = [format_node(n.info) for _, n in sorted(nodes.items()) if n.state not in ended_well]
    if unsaved:
        return Verdict("stopped", f"{reason}; not saved on {', '.join(unsaved[:RANKS_NAMED])}", "run")
    return Verdict("saved", f"{reason}; all nodes saved", "run")


# Kubernetes counts no restart after exit code 75, with which the program may end by itself, for example near a limit of
# time, and after the loss of a node.
RESTARTS_WITHOUT_PROGRESS = 3
LONG_RUN_S = 600  # a program that ran so long has made progress


def asked_for_restart(config: LaunchConfig, nodes: dict[int, NodeStatus]) -> Verdict:
    """The verdict on a run whose ranks ended with 0 or 75 without a signal."""
    saved = [format_node(n.info) for _, n in sorted(nodes.items()) if n.state is NodeState.SAVED]
    named = ", ".join(saved[:RANKS_NAMED])
    if config.attempt >= RESTARTS_WITHOUT_PROGRESS and not any(n.progressed for n in nodes.values()):
        reason = f"{named} ended with 75 before a first step, in start {config.attempt + 1} of this run"
        return Verdict("restart-loop", reason, "run")
    return Verdict("saved", f"{named} ended with 75, which asks for another start", "run")


def bounded(end: End, attempt: int, ran_s: float) -> End:
    """The verdict, which after many starts is another one if a node was lost soon: that one is counted."""
    if end.cause != "node-lost" or attempt < RESTARTS_WITHOUT_PROGRESS or ran_s > LONG_RUN_S:
        return end
    return End("restart-loop", f"{end.reason}, in start {attempt + 1} of this run", end.phase)
