"""A simulated fabric with faults of nodes and links, in which the bad-node search looks for them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from gpuworker.accept.checks.bad_nodes import plan
from gpuworker.accept.checks.bad_nodes.plan import Pair
from gpuworker.judgement.report import FAIL, INCOMPLETE, Evidence

HEALTHY_GBPS, NOISE = 48.0, 0.05
WRONG, HUNG = "wrong data", "timed out"


@dataclass
class Fabric:
    """Nodes and links with faults. The severity of a fault is the remaining share of the bandwidth,
    or a text.
    """

    bad: dict[tuple[int, ...], float | str]  # a node, or the two of a link
    noise: random.Random

    @classmethod
    def draw(cls, nodes: int, bad_nodes: int, bad_links: int, seed: int) -> Fabric:
        """Faults at random places; bad links join nodes that are good."""
        dice = random.Random(seed)
        places = dice.sample(range(nodes), bad_nodes)
        rest = sorted(set(range(nodes)) - set(places))
        links: set[Pair] = set()
        while len(links) < bad_links:
            links.add(tuple(sorted(dice.sample(rest, 2))))
        return cls(
            {part: _severity(dice) for part in [*((place,) for place in places), *sorted(links)]},
            dice,
        )

    def test(self, pair: Pair) -> float | str:
        """±5 %."""
        found = [what for part, what in self.bad.items() if {*part} <= {*pair}]
        faults = [what for what in found if isinstance(what, str)]
        return max(faults, default=0) or HEALTHY_GBPS * min([1.0, *found]) * self.noise.uniform(
            1 - NOISE, 1 + NOISE
        )

    def is_named(self, found: Evidence) -> bool:
        """Whether the findings are exactly the faults."""
        return accused(found) == set(self.bad) and not found.has(INCOMPLETE)


def accused(found: Evidence) -> set[tuple[int, ...]]:
    faults = [problem for problem in found.problems if problem.verdict == FAIL]
    return {tuple(map(int, problem.parts)) for problem in faults}


def search(
    nodes: int, test: Callable[[Pair], float | str], **options: float
) -> tuple[Evidence, list[list[Pair]]]:
    """The evidence, and the pairs of each round."""
    rounds = []

    def measure(pairs: list[Pair]) -> tuple[plan.Seen, set[int]]:
        rounds.append(pairs)
        return {pair: test(pair) for pair in pairs}, set()

    return plan.search(list(map(str, range(nodes))), measure, **options), rounds


def _severity(dice: random.Random) -> float | str:
    """Remaining bandwidth of 5 % to 70 %, wrong data, or a timeout."""
    return dice.choice([dice.uniform(0.05, 0.7), dice.uniform(0.05, 0.7), WRONG, HUNG])
