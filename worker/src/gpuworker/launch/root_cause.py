"""Root cause: from what the nodes reported to the verdict of the run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from gpuworker.launch.failure_causes import BY_KEY, Verdict
from gpuworker.launch.node_info import format_node
from gpuworker.launch.protocol import NodeInfo, NodeState, RankFailure

# Seconds to wait for more reports: for a root cause, and while all reports are secondary.
SETTLE_S, SECONDARY_SETTLE_S = 1.5, 6.0
WAITING = "waits in "  # start of the location of a rank that is in a collective
ENDED = "has ended with 0"


@dataclass
class NodeStatus:
    """Status of one node, as the coordinator tracks it."""

    info: NodeInfo
    writer: asyncio.StreamWriter
    last_heartbeat: float  # by the monotonic clock
    state: NodeState = NodeState.JOINED
    failure: RankFailure | None = None
    failed_at: float = 0.0
    stacks: dict[str, str] = field(default_factory=dict)  # rank -> where in the program it is


def failed(nodes: dict[int, NodeStatus], lost: dict[int, str], elapsed_s: float) -> Verdict | None:
    """The verdict on a failed run; None while more reports may arrive."""
    reports = sorted((n for n in nodes.values() if n.failure), key=lambda n: n.failed_at)
    roots = [n for n in reports if not BY_KEY[n.failure.cause].secondary]
    if elapsed_s < SETTLE_S or (not roots and not lost and elapsed_s < SECONDARY_SETTLE_S):
        return None
    first = roots[0] if roots else reports[0] if reports else None
    if lost and (not roots or roots[0].failure.cause == "collective-timeout"):
        named = ", ".join(f"{format_node(nodes[index].info)} {how}" for index, how in sorted(lost.items())[:8])
        return Verdict("node-lost", named, "run")
    early = [(rank, n) for _, n in sorted(nodes.items()) for rank, where in n.stacks.items() if where == ENDED]
    if early and (not roots or first.failure.cause == "collective-timeout"):
        named = ", ".join(f"rank {rank} of {format_node(n.info)}" for rank, n in early[:8])
        return Verdict("early-exit", f"{named} ended with 0 while others still worked: {format_failure(first)}", "run")
    reason = format_failure(first)
    if first.failure.cause == "collective-timeout":
        reason += f"; {format_locations(nodes)}"
    return Verdict(first.failure.cause, reason, first.failure.phase)


def format_failure(node: NodeStatus) -> str:
    """`rank 3 of node 1 (pod … on …): exit code 9; last line: …`"""
    rank = f"rank {node.failure.rank} of " if node.failure.rank is not None else ""
    return f"{rank}{format_node(node.info)}: {node.failure.detail}"


def format_locations(nodes: dict[int, NodeStatus]) -> str:
    """Where every rank was. Ranks outside a collective are first, because the others wait for them."""
    all_ranks = [(int(rank), where, n) for n in nodes.values() for rank, where in n.stacks.items()]
    outside = sorted(
        (rank, where, format_node(n.info)) for rank, where, n in all_ranks if not where.startswith(WAITING)
    )
    waiting = sorted(rank for rank, where, _ in all_ranks if where.startswith(WAITING))
    parts = [f"rank {rank} of {node} {where}" for rank, where, node in outside[:8]]
    if len(outside) > 8:
        parts.append(f"{len(outside) - 8} more elsewhere")
    if waiting:
        parts.append(f"{len(waiting)} wait in a collective (rank {', '.join(map(str, waiting[:8]))})")
    return "; ".join(parts) or "no rank reported where it was"


def stopped(reason: str, nodes: dict[int, NodeStatus]) -> Verdict:
    """The verdict on a run that was stopped from outside."""
    ended_well = (NodeState.DONE, NodeState.SAVED)
    unsaved = [format_node(n.info) for _, n in sorted(nodes.items()) if n.state not in ended_well]
    if unsaved:
        return Verdict("stopped", f"{reason}; not saved on {', '.join(unsaved[:8])}", "run")
    return Verdict("saved", f"{reason}; all nodes saved", "run")
