"""One part of a node: what is wrong with it, what follows from that elsewhere, and what to do."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuworker.judgement.kinds import KINDS, POWERED, SLOWER, WHY_SLOW, Act, urgency
from gpuworker.judgement.report import WORST_FIRST

ARROW = "→"  # of a link in one direction
BOTH_WAYS = "↔"
COLLECTIVES = "collectives"  # name of the check


class Ranked(NamedTuple):
    """A finding with its act, which sorts the one that decides the act of its part first."""

    rank: int  # of its verdict
    finding: object
    act: Act


@dataclass
class Part:
    findings: list = field(default_factory=list)
    # why it follows, and the finding
    consequences: list[tuple[str, object]] = field(default_factory=list)

    def add(self, other: Part) -> None:
        self.findings += other.findings
        self.consequences += other.consequences

    def ranked(self) -> list[Ranked]:
        causes = [finding for finding in self.findings if finding.kind in WHY_SLOW]
        # which has the watts of the others
        causes.sort(key=lambda f: (f.found_by != "fleet", WHY_SLOW.index(f.kind)))
        found = []
        for finding in self.findings:
            explained = causes and finding.kind in SLOWER and finding.check in POWERED
            act = causes[0].act if explained else finding.act
            found.append(Ranked(WORST_FIRST.index(finding.verdict), finding, act))
        found.sort(key=_order)
        first = found[0]
        if causes and first.finding.kind in SLOWER and first.act == causes[0].act:
            reasons = [each for cause in causes for each in found if each.finding is cause]
            rest = [each for each in found if each not in reasons]
            found = [reasons[0]._replace(rank=first.rank), *reasons[1:], *rest]
        return found

    @property
    def danger(self) -> int:
        return min(KINDS[finding.kind].danger for finding in self.findings)


# Device, link, port or several of them -> its part; "" is the node itself.
Parts = defaultdict[str, Part]


def _order(ranked: Ranked) -> tuple:
    """A link is less than the GPU of which it shows something, and slow collectives are a
    consequence of either.
    """
    finding = ranked.finding
    danger = KINDS[finding.kind].danger
    return (
        ranked.rank,
        is_slow_collective(finding),
        danger,
        urgency(ranked.act),
        ARROW in finding.device,
    )


def is_slow_collective(finding) -> bool:
    """Of one node: those across nodes have the network among their causes."""
    named = finding.device or finding.found_by == "world"
    return finding.check == COLLECTIVES and not named and finding.kind in SLOWER


def several(count: int, of_all: int, what: str = "GPUs") -> str:
    """The name of the part that several GPUs or ports of a node are."""
    return f"{'all ' * (count == of_all)}{count} {what}"


def gpus_of(name: str) -> list[str]:
    """The GPUs of a part: of a GPU itself, of a link two."""
    return [device for device in name.split(BOTH_WAYS) if device.startswith("cuda:")]
