"""Plan of the bad-node search: which groups of nodes to test, and what the tests prove.

A test of a group shows each of its pairs: GB/s, or a fault.

1. Screening: every node with up to three others, all pairs of a round at the same time.
2. A node without a good exchange is tested with three good ones: it is bad if all of these are.
3. A bad pair of good nodes is tested alone: the link is bad after three bad exchanges in a row.
4. All good nodes together, each pair of them in turn, then 2 and 3 for what stood out. A link that
   breaks the group hides later pairs, so the test is repeated without one end of it.

Bad is relative: slower than the better pairs by `tolerance`. So slow nodes in a clear majority look
normal, unless `expected_gbps` sets an absolute limit. Of two nodes the bad one cannot be told.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field

Group = tuple[int, ...]  # nodes in ascending order
Seen = dict[Group, float | str]  # pair -> GB/s, or a fault such as wrong data
Tests = Generator[list[Group], Seen, None]

PARTNERS = 3  # bad exchanges before a part is accused
MOST_LINKS = 32  # pairs that are tested alone after one test; the worst ones


@dataclass
class Findings:
    """`bad_nodes` and `bad_links` are proven, each with its evidence; `undecided` parts may be
    good or bad.
    """

    bad_nodes: dict[Group, str] = field(default_factory=dict)
    bad_links: dict[Group, str] = field(default_factory=dict)
    undecided: dict[Group, str] = field(default_factory=dict)
    unexplained: list[str] = field(default_factory=list)
    reference_gbps: float = 0.0


class BadNodeSearch:
    """`run` yields rounds of disjoint groups, and is sent what their tests saw."""

    def __init__(
        self, nodes: int, tolerance: float = 0.2, expected_gbps: float | None = None
    ) -> None:
        if nodes < 2:
            raise ValueError(f"{nodes} nodes: the search needs at least two")
        self.nodes, self.tolerance, self.expected_gbps = nodes, tolerance, expected_gbps
        self.findings = Findings()
        self._good: set[int] = set()
        self._only_slow: list[Group] = []  # accused by what is relative

    def is_bad(self, value: float | str) -> bool:
        least = (1 - self.tolerance) * max(self.findings.reference_gbps, self.expected_gbps or 0)
        return isinstance(value, str) or not value >= least

    def run(self) -> Tests:
        found, steps = self.findings, rounds_of_pairs(self.nodes)[:PARTNERS]
        screened = yield from _exchange(pair for step in steps for pair in step)
        rates = sorted(value for value in screened.values() if not isinstance(value, str))
        # Of the better quarter: right while an eighth of the pairs is healthy, and no outlier.
        better = rates[-math.ceil(len(rates) / 4) :]
        found.reference_gbps = statistics.median_high(better) if better else 0.0
        self._good = {node for pair in screened if not self.is_bad(screened[pair]) for node in pair}
        if not self._good:
            what = "; ".join(sorted(set(map(_words, screened.values()))))
            words = f"no exchange passed, so the search cannot tell which nodes are bad ({what})"
            found.undecided[tuple(range(self.nodes))] = words
            return
        yield from self._judge(screened)
        yield from self._all_together()
        if not self.expected_gbps and len(self._good) < self.nodes / 2:
            self._withdraw()

    def _judge(self, seen: Seen) -> Tests:
        """Accuse the nodes and the links that further tests prove to be bad."""
        ends = [node for pair in seen for node in pair]
        passed = {node for pair in seen if not self.is_bad(seen[pair]) for node in pair}
        # one bad exchange is that of the link
        suspects = sorted(node for node in set(ends) - passed if ends.count(node) > 1)
        good = sorted(self._good.difference(suspects))
        if len(good) < 2:  # one partner does not show which of the two is bad
            good, suspects = sorted(self._good), []
        partners = {
            node: [good[(index + turn) % len(good)] for turn in range(PARTNERS)]
            for index, node in enumerate(suspects)
        }
        pairs = {pair_of(node, other) for node in partners for other in partners[node]}
        seen = seen | (yield from _exchange(sorted(pairs)))
        self._good = set(good)
        for node in partners:
            values = {other: seen[pair_of(node, other)] for other in partners[node]}
            shown = [f"with node {other}: {_words(value)}" for other, value in values.items()]
            if not self._accuse(self.findings.bad_nodes, (node,), shown, [*values.values()]):
                self._good.add(node)
        known = self.findings.bad_links
        links = [p for p in seen if self.is_bad(seen[p]) and self._good.issuperset(p)]
        links = [pair for pair in links if pair not in known]
        worst = sorted(links, key=lambda pair: _rate(seen[pair]))[:MOST_LINKS]
        alone = {pair: [seen[pair]] for pair in worst}
        for _ in range(PARTNERS - 1):
            again = yield from _exchange(p for p in alone if self.is_bad(alone[p][-1]))
            for pair, value in again.items():
                alone[pair].append(value)
        for pair, values in alone.items():
            self._accuse(known, pair, map(_words, values), values)

    def _accuse(self, bad: dict, part: Group, shown: Iterable[str], values: list) -> bool:
        proven = all(map(self.is_bad, values))
        if proven:
            bad[part] = ", ".join(shown)
            self._only_slow += [part] * all(map(_rate, values))
        return proven

    def _all_together(self) -> Tests:
        found, doubts, broken = self.findings, 0, False
        for end in (0, 1):
            while True:
                left_out = {link[end] for link in found.bad_links if broken}
                group = tuple(sorted(self._good - left_out))
                if len(group) < 2:
                    return
                known = {*found.bad_nodes, *found.bad_links}
                seen = yield [group]
                yield from self._judge(seen)
                complete = len(seen) == math.comb(len(group), 2)
                broken |= not complete
                bad = [p for p in seen if self.is_bad(seen[p]) and p not in found.bad_links]
                if complete and not bad:
                    break
                doubts += known == {*found.bad_nodes, *found.bad_links}
                if doubts == 2:
                    words = f"{len(group)} nodes together: {len(bad)} of {len(seen)} pairs are bad"
                    found.unexplained.append(f"no single node or link explains this: {words}")
                    return
            if not broken:
                return

    def _withdraw(self) -> None:
        """Most nodes are bad, so the reference may be wrong: what is only slow is not accused."""
        found = self.findings
        for part in self._only_slow:
            shown = (found.bad_links if len(part) > 1 else found.bad_nodes).pop(part)
            reference = f"the reference of {found.reference_gbps:.3g} GB/s, which is doubtful"
            why = f"slower than {reference}: most nodes are bad ({shown}); give the expected GB/s"
            found.undecided[part] = why


def _exchange(pairs: Iterable[Group]) -> Generator[list[Group], Seen, Seen]:
    """Test pairs, in rounds of disjoint ones."""
    waiting, seen = list(pairs), {}
    while waiting:
        busy: set[int] = set()
        batch = [pair for pair in waiting if busy.isdisjoint(pair) and not busy.update(pair)]
        waiting = [pair for pair in waiting if pair not in batch]
        seen |= yield batch
    return seen


def rounds_of_pairs(count: int) -> list[list[tuple[int, int]]]:
    """All pairs of 0 … count-1 in rounds of disjoint pairs (the circle method of tournaments)."""
    ring = list(range(count)) + [-1] * (count % 2)  # -1 pauses
    found = []
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        found.append([(min(pair), max(pair)) for pair in pairs if -1 not in pair])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return found


def pair_of(*nodes: int) -> Group:
    return tuple(sorted(nodes))


def _rate(value: float | str) -> float:
    return 0.0 if isinstance(value, str) else value


def _words(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g} GB/s"
