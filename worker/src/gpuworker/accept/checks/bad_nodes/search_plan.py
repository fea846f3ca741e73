"""Plan of the bad-node search: group tests that identify the bad nodes and links and accuse no healthy one. No torch.

In a group test every pair of nodes of a group exchanges data; the outcome is the slowest exchange (`Outcome`). So a
group is bad if it contains a bad node, or both ends of a bad link. One round tests disjoint groups at the same time:

1. Screening, two rounds: the rows, then the columns of a grid of all nodes. Every node of a group that passes is good.
2. Confirmation, three rounds: each of the other nodes with three good partners. Bad with all of them: a bad node.
   Bad with some: the links to those are checked.
3. Bisection: a bad group of good nodes contains a bad link. Halve it; if both halves pass, the link connects them, and
   pairs of quarters find its ends. Two good nodes are accused as a link after three bad exchanges in a row.
4. Verification: all remaining nodes together. If they are still bad (one fault hid another), 3 follows.

A healthy world takes 3 rounds, bad nodes 6, each link up to 2·log2(n) more, or 4 with hints
(tests/scale/bad_node_search.py).
Bad is relative: slower than the better groups by `tolerance`. So slow nodes in a clear majority look normal, unless
`expected_gbps` sets an absolute limit. With two nodes the search cannot tell which one is bad, and reports that.
"""

from __future__ import annotations

import math
from collections.abc import Generator

from gpuworker.accept.checks.bad_nodes.findings import Findings, Group, Outcome
from gpuworker.accept.checks.bad_nodes.tasks import (
    RunningTask,
    Task,
    group_of,
    halves,
    upper_median,
    without_singles,
)

# known-good partners that must agree before a node is accused, and exchanges before a link is
PARTNERS = 3


class BadNodeSearch:
    """`while groups := search.next_round(): search.record([test(group) for group in groups])`,
    then `findings`.
    """

    def __init__(
        self, nodes: int, tolerance: float = 0.2, expected_gbps: float | None = None
    ) -> None:
        if nodes < 2:
            raise ValueError(f"{nodes} nodes: the search needs at least two")
        self.nodes, self.tolerance, self.expected_gbps = nodes, tolerance, expected_gbps
        self.findings = Findings()
        self._good: set[int] = set()
        self._passed: list[frozenset[int]] = []
        self._screened: dict[Group, Outcome] = {}
        self._checked_links: set[Group] = set()
        # accused by their bandwidth alone, which is relative
        self._only_slow: set[int | Group] = set()
        self._best_gbps = 0.0
        self._tasks: list[RunningTask] = []
        self._phases = self._all_phases()
        self._round: list[tuple[RunningTask, int]] = []

    def next_round(self) -> list[Group]:
        """Disjoint groups to test now; none at the end of the search."""
        while not self._tasks:
            if next(self._phases, "done") == "done":
                return []
        busy: set[int] = set()
        self._round, groups = [], []
        for task in self._tasks:
            for index, group in task.open():
                if busy.isdisjoint(group):
                    busy.update(group)
                    self._round.append((task, index))
                    groups.append(group)
        return groups

    def record(self, outcomes: list[Outcome]) -> None:
        """The outcomes of the groups of the last round, in their order."""
        self.findings.rounds += 1
        self.findings.tests += len(outcomes)
        for (task, index), outcome in zip(self._round, outcomes, strict=True):
            task.outcomes[index] = outcome
            if not outcome.fault:
                self._best_gbps = max(self._best_gbps, outcome.gbps)
            if self.findings.reference_gbps is not None and not self.is_bad(outcome):
                self._pass(task.groups[index])
        for task in list(self._tasks):
            if not task.open() and not task.resume():
                self._tasks.remove(task)

    def is_bad(self, outcome: Outcome) -> bool:
        reference = max(self.findings.reference_gbps or 0, self.expected_gbps or 0)
        return bool(outcome.fault) or not outcome.gbps >= (1 - self.tolerance) * reference

    def _all_phases(self) -> Generator[None, None, None]:
        yield from self._find()
        self._withdraw_if_reference_is_doubtful()

    def _withdraw_if_reference_is_doubtful(self) -> None:
        """Withdraw the accusation of nodes and links that are only slow if the reference may be
        wrong.
        """
        found, reference = self.findings, self.findings.reference_gbps or 0
        faster = self._best_gbps > reference / (1 - self.tolerance)
        if (
            self.expected_gbps
            or not self._only_slow
            or not (faster or len(self._good) < self.nodes / 2)
        ):
            return
        why = f"slower than the reference of {reference:.3g} GB/s, which is doubtful: " + (
            f"some reached {self._best_gbps:.3g} GB/s" if faster else "most nodes are bad"
        )
        for part in self._only_slow:
            seen = (
                found.bad_links.pop(part) if isinstance(part, tuple) else found.bad_nodes.pop(part)
            )
            found.undecided[part if isinstance(part, tuple) else (part,)] = (
                f"{why} ({seen}); give the expected GB/s"
            )

    def _find(self) -> Generator[None, None, None]:
        """Start tasks, then wait until all of them are done."""
        found = self.findings
        self._start(self._screen())
        yield
        found.reference_gbps = upper_median(
            [o.gbps for o in self._screened.values() if not o.fault]
        )
        for group, outcome in self._screened.items():
            if not self.is_bad(outcome):
                self._pass(group)
        if not self._good:
            what = "; ".join(sorted({str(outcome) for outcome in self._screened.values()}))
            found.undecided[tuple(range(self.nodes))] = (
                f"no group passed, so the search cannot tell which nodes are bad ({what})"
            )
            return
        for node in sorted(set(range(self.nodes)) - self._good):
            self._start(self._confirm(node))
        yield
        to_search = [
            (group, outcome)
            for group, outcome in self._screened.items()
            if not self._covered(group)
        ]
        while True:
            before, searched = found.faults, False
            for group, outcome in to_search:
                if self._explained(group):
                    continue
                if hints := [pair for pair in outcome.hints if pair not in self._checked_links]:
                    for pair in hints:
                        self._start(self._link(*pair))
                else:
                    searched = True
                    self._start(self._search(group))
            yield
            bad: list[tuple[Group, Outcome]] = []
            self._start(self._verify(bad))
            yield
            if bad and searched and found.faults == before:
                sizes = ", ".join(
                    f"{len(group)} nodes together: {outcome}" for group, outcome in bad
                )
                found.unexplained.append(f"no single node or link explains this: {sizes}")
            if not bad or found.unexplained:
                return
            to_search = bad

    def _screen(self) -> Task:
        """Rows and columns of a grid; with fewer than four nodes, all pairs."""
        nodes = list(range(self.nodes))
        if self.nodes < 4:
            groups = [(a, b) for a in nodes for b in nodes if a < b]
        else:
            width = math.isqrt(self.nodes - 1) + 1
            rows = [nodes[start : start + width] for start in range(0, self.nodes, width)]
            groups = [
                *without_singles(rows),
                *without_singles([nodes[start::width] for start in range(width)]),
            ]
        self._screened = dict(zip(groups, (yield groups), strict=True))

    def _confirm(self, node: int) -> Task:
        """Test a node that was in no group that passed: a bad node fails with every partner."""
        good, failed = sorted(self._good), []
        # Spread over all good nodes, so that two nodes seldom need the same partner in one round.
        partners = [good[(node * PARTNERS + turn * 7919) % len(good)] for turn in range(PARTNERS)]
        partners = list(dict.fromkeys(partners + good))[:PARTNERS]
        for partner in partners:
            (outcome,) = yield [group_of(node, partner)]
            if not self.is_bad(outcome):
                for other, _ in failed:
                    self._start(self._link(node, other))
                return
            failed.append((partner, outcome))
        tests = ", ".join(f"with node {partner}: {outcome}" for partner, outcome in failed)
        if len(partners) == 1:
            self.findings.undecided[group_of(node, partners[0])] = (
                f"the only good partner does not show which of the two: {tests}"
            )
        else:
            self.findings.bad_nodes[node] = tests
            if not any(outcome.fault for _, outcome in failed):
                self._only_slow.add(node)

    def _link(self, a: int, b: int) -> Task:
        """Test two nodes that are good with others: a bad link fails each time."""
        pair = group_of(a, b)
        if pair in self._checked_links:
            return
        self._checked_links.add(pair)
        outcomes = []
        for _ in range(PARTNERS):
            outcomes += yield [pair]
            if not self.is_bad(outcomes[-1]):
                return  # the verification finds remaining faults
        self.findings.bad_links[pair] = ", ".join(map(str, outcomes))
        if not any(outcome.fault for outcome in outcomes):
            self._only_slow.add(pair)

    def _search(self, group: Group) -> Task:
        """A bad group of good nodes."""
        if len(group) == 2:
            self._start(self._link(*group))
            return
        parts = [half for half in halves(group) if len(half) > 1 and not self._covered(half)]
        outcomes = (yield parts) if parts else []
        bad = [half for half, outcome in zip(parts, outcomes, strict=True) if self.is_bad(outcome)]
        for half in bad:
            self._start(self._search(half))
        if not bad:
            self._start(self._cross(*halves(group)))

    def _cross(self, left: Group, right: Group) -> Task:
        """Search between two sides that pass alone and fail together. The last pair is bad if
        all others pass.
        """
        if len(left) == len(right) == 1:
            self._start(self._link(*left, *right))
            return
        if len(left) == 1 or len(right) == 1:
            one, many = sorted((left, right), key=len)
            first, second = halves(many)
            steps, last = [[(one, first)]], (one, second)
        else:
            (a, b), (c, d) = halves(left), halves(right)
            steps, last = [[(a, c), (b, d)], [(a, d)]], (b, c)
        for step in steps:
            outcomes = yield [group_of(*some, *others) for some, others in step]
            bad = [
                sides for sides, outcome in zip(step, outcomes, strict=True) if self.is_bad(outcome)
            ]
            for sides in bad:
                self._start(self._cross(*sides))
            if bad:
                return
        self._start(self._cross(*last))

    def _verify(self, bad: list[tuple[Group, Outcome]]) -> Task:
        """Test all remaining nodes together, without the links that are known to be bad."""
        undecided = {node for group in self.findings.undecided for node in group}
        rest = set(range(self.nodes)) - set(self.findings.bad_nodes) - undecided
        links = [set(link) for link in self.findings.bad_links]
        cover: set[int] = set()  # one end of every bad link
        for link in self.findings.bad_links:
            if cover.isdisjoint(link):
                cover.add(link[0])
        groups = [group_of(*(rest - cover))]
        for node in cover:  # with all others except its partners and the other nodes of the cover
            partners = set().union(*(link for link in links if node in link))
            groups.append(group_of(*(rest - cover - partners), node))
        groups += [group_of(a, b) for a in cover for b in cover if a < b and {a, b} not in links]
        for group in groups:
            if len(group) > 1 and not self._covered(group):
                (outcome,) = yield [group]
                if self.is_bad(outcome):  # one search at a time: large groups overlap
                    bad.append((group, outcome))
                    return

    def _explained(self, group: Group) -> bool:
        """Whether a known fault is within the group. The verification finds faults that it
        hides.
        """
        known = [
            *((node,) for node in self.findings.bad_nodes),
            *self.findings.bad_links,
            *self.findings.undecided,
        ]
        return any(set(part) <= set(group) for part in known) or any(
            set(group) & set(parts) for parts in self.findings.undecided
        )

    def _covered(self, group: Group) -> bool:
        """Whether a group that passed contains this one."""
        return any(passed.issuperset(group) for passed in self._passed)

    def _pass(self, group: Group) -> None:
        self._good.update(group)
        self._passed.append(frozenset(group))

    def _start(self, task: Task) -> None:
        running = RunningTask(task)
        if running.resume():
            self._tasks.append(running)
