"""From what the nodes report to the one root cause."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from gpuworker.launch.failure_causes import BY_KEY, Verdict
from gpuworker.launch.node_info import who

SETTLE_S, ECHO_S = 1.5, 6.0  # how long to wait for a cause, and for one when there are only echoes of it
WAITS = "waits in "  # how a rank's place begins when it is in a collective
ENDED = "has ended with 0"


@dataclass
class Peer:
    """What node 0 knows of a node."""

    card: dict
    writer: asyncio.StreamWriter
    seen: float  # when it was heard last, by the monotonic clock
    state: str = "here"  # here, formed, then done, saved or stopped
    report: dict | None = None  # its failure
    where: dict[str, str] = field(default_factory=dict)  # rank -> where in the program it is


def failed(peers: dict[int, Peer], gone: dict[int, str], since_s: float) -> Verdict | None:
    """None: wait, more may come."""
    reports = sorted((p for p in peers.values() if p.report), key=lambda p: p.report["at"])
    roots = [p for p in reports if not BY_KEY[p.report["key"]].echo]
    if since_s < SETTLE_S or (not roots and not gone and since_s < ECHO_S):
        return None
    first = roots[0] if roots else reports[0] if reports else None
    if gone and (not roots or roots[0].report["key"] == "collective"):
        named = ", ".join(f"{who(peers[index].card)} {how}" for index, how in sorted(gone.items())[:8])
        return Verdict("lost", named, "run")
    early = [(rank, p) for _, p in sorted(peers.items()) for rank, place in p.where.items() if place == ENDED]
    if early and (not roots or first.report["key"] == "collective"):
        named = ", ".join(f"rank {rank} of {who(p.card)}" for rank, p in early[:8])
        return Verdict("early-end", f"{named} ended with 0 while others still worked: {line(first)}", "run")
    if first.report["key"] == "collective":
        return Verdict("collective", f"{line(first)}; {places(peers)}", "run")
    return Verdict(first.report["key"], line(first), first.report.get("phase", "run"))


def line(peer: Peer) -> str:
    """rank 3 of node 1 (pod … on …): exit code 9: its last words"""
    report = peer.report
    rank = f"rank {report['rank']} of " if report.get("rank") is not None else ""
    return f"{rank}{who(peer.card)}: {report['what']}"


def places(peers: dict[int, Peer]) -> str:
    """Where the ranks were: first those that do not wait in a collective, for whom the others wait."""
    all_of = [(int(rank), place, p) for p in peers.values() for rank, place in p.where.items()]
    absent = sorted((rank, place, who(p.card)) for rank, place, p in all_of if not place.startswith(WAITS))
    waiting = sorted(rank for rank, place, _ in all_of if place.startswith(WAITS))
    words = [f"rank {rank} of {node} {place}" for rank, place, node in absent[:8]]
    if len(absent) > 8:
        words.append(f"{len(absent) - 8} more elsewhere")
    if waiting:
        words.append(f"{len(waiting)} wait in a collective (rank {', '.join(map(str, waiting[:8]))})")
    return "; ".join(words) or "no rank told where it was"


def stopped(stopper: str, peers: dict[int, Peer]) -> Verdict:
    unsaved = [who(p.card) for _, p in sorted(peers.items()) if p.state not in ("done", "saved")]
    if unsaved:
        return Verdict("stopped", f"{stopper}; not saved on {', '.join(unsaved[:8])}", "run")
    return Verdict("saved", f"{stopper}; all nodes saved", "run")
