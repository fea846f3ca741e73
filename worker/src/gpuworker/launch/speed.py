"""How fast a run goes: a line now and then with step, steps per second and slow ranks."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from gpuworker.launch.root_cause import NodeStatus

EVERY_S = 300.0
SLOW = 1.2  # times the median time of a step


class Speeds:
    """Remembers when the last line was."""

    def __init__(self) -> None:
        self.said_at = 0.0

    def line(self, nodes: Iterable[NodeStatus], now: float) -> dict[str, object] | None:
        """Facts of a line that is due; None before, or if no rank has made a step."""
        self.said_at = self.said_at or now
        if now < self.said_at + EVERY_S:
            return None
        self.said_at = now
        pairs = [each for node in nodes for each in node.speeds.items() if valid(*each)]
        rates = {int(rank): rate for rank, (_, rate) in pairs if rate > 0}
        if not rates:
            return None
        median = statistics.median(rates.values())
        slow = sorted(rank for rank, rate in rates.items() if rate * SLOW < median)
        found = {"step": max(step for _, (step, _) in pairs), "steps_per_second": median}
        return found | ({"slow_ranks": ",".join(map(str, slow[:8]))} if slow else {})


def valid(rank: str, pair: object) -> bool:
    """Whether an entry of another node's message is what it should be."""
    numbers = pair if isinstance(pair, list) and len(pair) == 2 else [None]
    return rank.isdecimal() and all(isinstance(each, int | float) for each in numbers)
