"""Data of the bad-node search: the outcome of one group test, and the findings from all of them."""

from __future__ import annotations

from dataclasses import dataclass, field

Group = tuple[int, ...]  # nodes in ascending order


@dataclass(frozen=True)
class Outcome:
    """One group test: the slowest exchange in GB/s, and any other fault as text (wrong data, a
    timeout).

    `hints`: pairs of nodes that stood out. They shorten the search and do not prove anything.
    """

    gbps: float
    fault: str = ""
    hints: tuple[Group, ...] = ()

    def __str__(self) -> str:
        return self.fault or f"{self.gbps:.3g} GB/s"


@dataclass
class Findings:
    """`bad_nodes` and `bad_links` are proven, each with its evidence; `undecided` parts may be
    good or bad.
    """

    bad_nodes: dict[int, str] = field(default_factory=dict)
    bad_links: dict[Group, str] = field(default_factory=dict)
    undecided: dict[Group, str] = field(default_factory=dict)
    unexplained: list[str] = field(default_factory=list)
    reference_gbps: float | None = None
    rounds: int = 0
    tests: int = 0

    @property
    def faults(self) -> int:
        return len(self.bad_nodes) + len(self.bad_links) + len(self.undecided)
