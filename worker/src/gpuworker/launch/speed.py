"""How fast a run goes: a line now and then with step, steps per second and slow ranks."""

from __future__ import annotations

import statistics

EVERY_S = 300.0
SLOW = 1.2  # times the median time of a step


class Speeds:
    """Remembers the steps of all ranks at the last line."""

    def __init__(self) -> None:
        self.at, self.before = 0.0, []

    def line(self, steps: list[int], now: float) -> dict[str, object] | None:
        """Facts of a line that is due; None before, or if no rank has made a step.

        `steps`: of each rank until now, where all are known.
        """
        if now < self.at + EVERY_S:
            return None
        since, self.at = now - self.at, now
        before, self.before = self.before, steps
        pairs = zip(before, steps, strict=False)
        made = {rank: new - old for rank, (old, new) in enumerate(pairs) if new > old}
        if not made or len(before) != len(steps):
            return None
        median = statistics.median(made.values())
        slow = [rank for rank, number in made.items() if number * SLOW < median]
        found = {"step": max(steps), "steps_per_second": median / since}
        return found | {"slow_ranks": ",".join(map(str, slow[:8]))} if slow else found
