"""How fast a run goes: a line now and then with step, steps per second and slow ranks."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from gpuworker.launch.root_cause import NodeStatus

EVERY_S = 300.0
SLOW = 1.2  # times the median time of a step


class Speeds:
    """Remembers the steps of all ranks at the last line."""

    def __init__(self) -> None:
        self.at, self.before = 0.0, {}

    def line(self, nodes: Iterable[NodeStatus], now: float) -> dict[str, object] | None:
        """Facts of a line that is due; None before, or if no rank has made a step."""
        if self.at and now < self.at + EVERY_S:
            return None
        pairs = [pair for node in nodes for pair in node.steps.items()]
        steps = {int(rank): n for rank, n in pairs if rank.isdecimal() and isinstance(n, int)}
        since, self.at = now - self.at, now
        before, self.before = self.before, steps
        made = {rank: n - before[rank] for rank, n in steps.items() if before.get(rank, n) < n}
        if not made:
            return None
        median = statistics.median(made.values())
        slow = sorted(rank for rank, number in made.items() if number * SLOW < median)
        found = {"step": max(steps.values()), "steps_per_second": median / since}
        return found | ({"slow_ranks": ",".join(map(str, slow[:8]))} if slow else {})
