"""Plan of the bad-node search: which pairs of nodes to test, and what the tests prove.

A test of a pair shows GB/s, or a fault.

1. Rounds of disjoint pairs, until every node was with every other one. Of more than
   MOST_ROUNDS + 1 nodes, each is with MOST_ROUNDS others.
2. The figure of a node is the median of its pairs, and the reference is the median of the figures.
   A node whose figure is below the reference by `tolerance` is bad.
3. A slow pair of other nodes is tested once more, alone: the link between them is bad if it is slow
   again.

Slow nodes in a majority look normal, unless `expected_gbps` sets an absolute limit. Then they
cannot be told from the others, and neither can the bad one of two nodes.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from gpuworker.judgement.report import Evidence

Pair = tuple[int, int]  # nodes in ascending order
Seen = dict[Pair, float | str]  # GB/s, or a fault such as wrong data
Test = Callable[[list[Pair]], tuple[Seen, set[int]]]

MOST_ROUNDS = 255  # a round takes a second or two
MOST_LINKS = 32  # the worst ones
SHOWN = 3  # pairs of a bad node
FAILED = 3  # partners with which a node failed, after which it is tested with no more


def search(
    names: Sequence[str], test: Test, tolerance: float = 0.2, expected_gbps: float | None = None
) -> Evidence:
    """`names` of the nodes, as parts; `test`: what is seen of disjoint pairs, and the nodes that
    did not answer.
    """
    if len(names) < 2:
        raise ValueError(f"{len(names)} nodes: the search needs at least two")
    seen: Seen = {}
    silent: set[int] = set()
    for pairs in rounds_of_pairs(len(names))[:MOST_ROUNDS]:
        if pairs := [pair for pair in pairs if silent.isdisjoint(pair)]:
            new, lost = test(pairs)
            seen |= new
            silent |= lost | _failing(seen)
    rates: dict[int, list[float]] = defaultdict(list)
    for pair, value in seen.items():
        for node in pair:
            rates[node].append(_rate(value))
    figures = {node: statistics.median_high(own) for node, own in rates.items()}
    reference = statistics.median_high(figures.values())
    least = (1 - tolerance) * max(reference, expected_gbps or 0)
    bad_nodes = {node for node, figure in figures.items() if not 0 < figure >= least}
    bad = {pair: value for pair, value in seen.items() if not 0 < _rate(value) >= least}
    found = Evidence(facts={"count": len(names)})
    if reference:
        found.add_number("pair_bandwidth", reference, "GB/s")
    if 2 * len(bad_nodes) > len(names):
        words = ", ".join(sorted(set(map(_words, bad.values())))[:SHOWN])
        words = f"most nodes are bad, so the search cannot tell which ({words})"
        found.incomplete("missing", words, measure="pair_bandwidth")
        return found
    for node in sorted(bad_nodes):
        own = [(names[sum(pair) - node], value) for pair, value in bad.items() if node in pair]
        words = ", ".join(f"with {other}: {_words(value)}" for other, value in own[:SHOWN])
        found.fail("bad-node", f"{names[node]} is bad: {words}", names[node])
    links = [pair for pair in bad if bad_nodes.isdisjoint(pair)]
    for pair in sorted(links, key=lambda pair: _rate(bad[pair]))[:MOST_LINKS]:
        again = test([pair])[0][pair] if _rate(bad[pair]) else bad[pair]
        if not _rate(again) >= least:
            parts = [names[node] for node in pair]
            words = f"the link between {' and '.join(parts)} is bad, both are good with others"
            found.fail("bad-link", f"{words}: {_words(bad[pair])}, {_words(again)}", *parts)
    return found


def _failing(seen: Seen) -> set[int]:
    """Nodes that completed no exchange, with partners that did with others: each further one may
    take as long as its time-out.
    """
    done = {node for pair, value in seen.items() if _rate(value) for node in pair}
    failed = Counter(node for pair in seen if not done.isdisjoint(pair) for node in {*pair} - done)
    return {node for node, count in failed.items() if count >= FAILED}


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
