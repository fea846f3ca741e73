"""Plan of the bad-node search: which pairs of nodes to test, and what the tests prove.

A test of a pair shows GB/s, or a fault.

1. Rounds of disjoint pairs, until every node was with every other one: the usual test of pairs.
   Of more than MOST_ROUNDS + 1 nodes, each is with MOST_ROUNDS others.
2. A node that did not answer, or completed no exchange, is bad, and so is the node with the most
   bad pairs, if most of its pairs with nodes that are not bad are bad; then the next one.
3. A bad pair of other nodes is tested again: the link is bad after three bad exchanges in a row.

Bad is relative: slower than the better pairs by `tolerance`. So slow nodes in a clear majority look
normal, unless `expected_gbps` sets an absolute limit. Of two nodes the bad one cannot be told.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field

Pair = tuple[int, ...]  # nodes in ascending order
Seen = dict[Pair, float | str]  # GB/s, or a fault such as wrong data
Tests = Generator[list[Pair], Seen, None]

EXCHANGES = 3  # bad ones before a part is accused
MOST = 0.5  # of the pairs of a node
MOST_ROUNDS = 255  # a round takes a second or two
MOST_LINKS = 32  # pairs that are tested again; the worst ones


@dataclass
class Findings:
    """`bad_nodes` and `bad_links` are proven, each with its evidence; `undecided` parts may be
    good or bad.
    """

    bad_nodes: dict[Pair, str] = field(default_factory=dict)
    bad_links: dict[Pair, str] = field(default_factory=dict)
    undecided: dict[Pair, str] = field(default_factory=dict)
    reference_gbps: float = 0.0


class BadNodeSearch:
    """`run` yields rounds of disjoint pairs, and is sent what their tests saw."""

    def __init__(
        self, nodes: int, tolerance: float = 0.2, expected_gbps: float | None = None
    ) -> None:
        if nodes < 2:
            raise ValueError(f"{nodes} nodes: the search needs at least two")
        self.nodes, self.tolerance, self.expected_gbps = nodes, tolerance, expected_gbps
        self.findings = Findings()
        self.lost: set[int] = set()  # nodes that did not answer
        self._seen: dict[Pair, list[float | str]] = defaultdict(list)

    def is_bad(self, value: float | str) -> bool:
        least = (1 - self.tolerance) * max(self.findings.reference_gbps, self.expected_gbps or 0)
        return isinstance(value, str) or not value >= least

    def run(self) -> Tests:
        found = self.findings
        for pairs in rounds_of_pairs(self.nodes)[:MOST_ROUNDS] * -(-EXCHANGES // (self.nodes - 1)):
            yield from self._test(pairs)
        values = [value for seen in self._seen.values() for value in seen]
        rates = sorted(value for value in values if not isinstance(value, str))
        # Of the better quarter: right while an eighth of the pairs is healthy, and no outlier.
        better = rates[-math.ceil(len(rates) / 4) :]
        found.reference_gbps = statistics.median_high(better) if better else 0.0
        bad = {pair for pair, seen in self._seen.items() if all(map(self.is_bad, seen))}
        if len(bad) == len(self._seen):
            what = "; ".join(sorted(set(map(_words, values))))
            words = f"no exchange passed, so the search cannot tell which nodes are bad ({what})"
            found.undecided[tuple(range(self.nodes))] = words
            return
        links = sorted(self._without_bad_nodes(bad), key=lambda pair: _rate(self._seen[pair][-1]))
        for _ in range(EXCHANGES - 1):
            yield from self._test(p for p in links[:MOST_LINKS] if self.is_bad(self._seen[p][-1]))
        for pair in links[:MOST_LINKS]:
            last = self._seen[pair][-EXCHANGES:]
            if all(map(self.is_bad, last)):
                found.bad_links[pair] = ", ".join(map(_words, last))
        if not self.expected_gbps and 2 * len(found.bad_nodes) > self.nodes:
            self._withdraw()

    def _test(self, pairs: Iterable[Pair]) -> Tests:
        """Test pairs, in rounds of disjoint ones, without those of silent nodes."""
        waiting = list(pairs)
        while True:
            silent, busy = self._silent(), set()
            waiting = [pair for pair in waiting if silent.isdisjoint(pair)]
            if not waiting:
                return
            batch = [pair for pair in waiting if busy.isdisjoint(pair) and not busy.update(pair)]
            waiting = [pair for pair in waiting if pair not in batch]
            for pair, value in (yield batch).items():
                self._seen[pair].append(value)

    def _silent(self) -> set[int]:
        """Nodes that did not answer, and those that completed no exchange, also none with nodes
        that did with others: each further one may take as long as its time-out.
        """
        done = {n for pair, values in self._seen.items() if any(map(_rate, values)) for n in pair}
        failed = Counter(
            node
            for pair, values in self._seen.items()
            for node in {*pair} - done
            if not done.isdisjoint(pair)
            for _ in values
        )
        return self.lost | {node for node, count in failed.items() if count >= EXCHANGES}

    def _without_bad_nodes(self, bad: set[Pair]) -> set[Pair]:
        """The bad pairs that no bad node explains. Accuses the bad nodes."""
        tested, silent = set(self._seen), self._silent()
        while bad:
            counts = Counter(node for pair in bad for node in pair)
            node = max(counts, key=lambda node: (node in silent, counts[node]))
            share = counts[node] / sum(node in pair for pair in tested)
            if node not in silent and (counts[node] < 2 or share <= MOST):
                break
            own = sorted(pair for pair in bad if node in pair)
            shown = [(sum(pair) - node, value) for pair in own for value in self._seen[pair]]
            self.findings.bad_nodes[(node,)] = ", ".join(
                f"with node {other}: {_words(value)}" for other, value in shown[:EXCHANGES]
            )
            bad, tested = ({p for p in pairs if node not in p} for pairs in (bad, tested))
        return bad

    def _withdraw(self) -> None:
        """Most nodes are bad, so the reference may be wrong: what is only slow is not accused."""
        found = self.findings
        for part in [*found.bad_nodes, *found.bad_links]:
            values = [
                value for pair in self._seen if {*part} <= {*pair} for value in self._seen[pair]
            ]
            if all(map(_rate, values)):
                shown = (found.bad_links if len(part) > 1 else found.bad_nodes).pop(part)
                reference = f"the reference of {found.reference_gbps:.3g} GB/s, which is doubtful"
                why = f"slower than {reference}: most nodes are bad ({shown})"
                found.undecided[part] = f"{why}; give the expected GB/s"


def rounds_of_pairs(count: int) -> list[list[Pair]]:
    """All pairs of 0 … count-1 in rounds of disjoint pairs (the circle method of tournaments)."""
    ring = list(range(count)) + [-1] * (count % 2)  # -1 pauses
    found = []
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        found.append([(min(pair), max(pair)) for pair in pairs if -1 not in pair])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return found


def _rate(value: float | str) -> float:
    return 0.0 if isinstance(value, str) else value


def _words(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g} GB/s"
