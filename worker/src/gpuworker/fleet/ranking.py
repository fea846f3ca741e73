"""Ranking of the findings about one part: the one that decides its act first."""

from __future__ import annotations

from typing import NamedTuple

from gpuworker.accept.report import WORST_FIRST
from gpuworker.fleet.acts import CAPPED, POWER, SLOW, Act, act_for, is_of_power, urgency
from gpuworker.fleet.places import ARROW

COLLECTIVES = "collectives"  # name of the check


class Ranked(NamedTuple):
    """A finding with its act, which sorts the worst and most urgent first."""

    rank: int  # of its verdict
    urgency: int
    finding: object
    act: Act


def is_slow_collective(finding) -> bool:
    """Of one node: those across nodes have the network among their causes."""
    named = finding.device or finding.found_by == "world"
    return finding.check == COLLECTIVES and not named and bool(SLOW.search(finding.reason))


def ranked(about: list) -> list[Ranked]:
    """The findings about a part, the one that decides its act first."""
    causes = [finding for finding in about if CAPPED.search(finding.reason)]
    causes.sort(key=lambda finding: finding.found_by != "fleet")  # which has the watts of the others
    found = []
    for finding in about:
        act = act_for(finding.check, finding.found_by, finding.reason, finding.verdict)
        act = POWER if causes and is_of_power(finding.check, finding.reason) else act
        found.append(Ranked(WORST_FIRST.index(finding.verdict), urgency(act), finding, act))
    # A link is less than the GPU of which it shows something, and slow collectives are a consequence of either.
    found.sort(key=lambda r: (r.rank, is_slow_collective(r.finding), r.urgency, ARROW in r.finding.device))
    if causes and found[0].act is POWER:  # the cause is more of a reason than the slowness
        first = [each for cause in causes for each in found if each.finding is cause]
        found = [Ranked(found[0].rank, *first[0][1:]), *first[1:]] + [each for each in found if each not in first]
    return found
