"""A simulated fabric with faults of nodes and links, in which the bad-node search looks for them."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

from gpuworker.accept.checks.bad_nodes.plan import BadNodeSearch, Findings, Group, Seen

HEALTHY_GBPS, NOISE = 48.0, 0.05
SLOW, WRONG, HUNG = "slow", "wrong data", "timed out"


@dataclass
class Fabric:
    """Nodes and links with faults. The severity of a fault is the remaining share of the bandwidth, or a text."""

    bad_nodes: dict[int, float | str]
    bad_links: dict[Group, float | str]
    noise: random.Random

    @classmethod
    def draw(cls, nodes: int, bad_nodes: int, bad_links: int, seed: int) -> Fabric:
        """Faults at random places; bad links join nodes that are good."""
        dice = random.Random(seed)
        places = dice.sample(range(nodes), bad_nodes)
        rest = sorted(set(range(nodes)) - set(places))
        links: set[Group] = set()
        while len(links) < bad_links:
            links.add(tuple(sorted(dice.sample(rest, 2))))
        nodes_and_links = ({place: _severity(dice) for place in places}, {link: _severity(dice) for link in links})
        return cls(*nodes_and_links, dice)

    def test(self, group: Group) -> Seen:
        """Each pair, ±5 %. A part that hangs ends the test of all, but for the pairs that were before."""
        inside = set(group)
        hung_nodes = {node for node in inside if self.bad_nodes.get(node) == HUNG}
        hung_links = [link for link, what in self.bad_links.items() if what == HUNG and inside.issuperset(link)]
        if hung_nodes:
            return {pair: HUNG for pair in itertools.combinations(group, 2) if hung_nodes.intersection(pair)}
        if hung_links:
            return {hung_links[0]: HUNG}
        return {pair: self._pair(pair) for pair in itertools.combinations(group, 2)}

    def _pair(self, pair: Group) -> float | str:
        found = [self.bad_nodes[node] for node in pair if node in self.bad_nodes]
        found += [self.bad_links[pair]] if pair in self.bad_links else []
        if WRONG in found:
            return WRONG
        return HEALTHY_GBPS * min([1.0, *found]) * self.noise.uniform(1 - NOISE, 1 + NOISE)

    def is_named(self, findings: Findings) -> bool:
        """Whether the findings are exactly the faults."""
        return (
            nodes_of(findings) == set(self.bad_nodes)
            and set(findings.bad_links) == set(self.bad_links)
            and not findings.undecided
            and not findings.unexplained
        )

    def false_accusations(self, findings: Findings) -> list[object]:
        """Healthy nodes and links that the findings name."""
        return [*(nodes_of(findings) - set(self.bad_nodes)), *(set(findings.bad_links) - set(self.bad_links))]


def nodes_of(findings: Findings) -> set[int]:
    return {node for (node,) in findings.bad_nodes}


def search(nodes: int, test: Callable[[Group], Seen], **options: float) -> tuple[Findings, list[list[Group]]]:
    """The findings, and the groups of each round."""
    plan, rounds = BadNodeSearch(nodes, **options), []
    tests = plan.run()
    groups = next(tests)
    with contextlib.suppress(StopIteration):
        while True:
            rounds.append(groups)
            seen: Seen = {}
            for group in groups:
                seen |= test(group)
            groups = tests.send(seen)
    return plan.findings, rounds


def _severity(dice: random.Random) -> float | str:
    """Remaining bandwidth of 5 % to 70 %, wrong data, or a timeout."""
    return dice.choice([dice.uniform(0.05, 0.7), dice.uniform(0.05, 0.7), WRONG, HUNG])
