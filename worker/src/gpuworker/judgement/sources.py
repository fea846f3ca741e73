"""What a merge gets: sources of reports, which of several counts, and what they must cover.

A source that cannot be read is kept with its name and the problem, and makes the fleet INCOMPLETE.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuworker.judgement.findings import subject
from gpuworker.judgement.judge import Judged, started
from gpuworker.judgement.report import NODE, WORST_FIRST, Report, Requested


@dataclass(frozen=True)
class Source:
    """One place that should hold a report: the report, or the problem with it, or notes alone."""

    name: str
    report: Report | None = None
    error: str = ""
    judged: Judged | None = None  # the report with its verdict, if that is known already
    node: str = ""  # of a report that cannot be read
    notes: tuple[str, ...] = ()


def that_counts(known: Source, new: Source, replaces: bool = False) -> Source:
    """Which of two judged reports of a node, or of a world, counts, with a note about the other.

    That of the newer run or world; else that of a pod that `replaces` the other, whatever the
    clocks say; else the worst, since any of them may be wrong.
    """
    if known.judged == new.judged:
        return known
    began, begins = started(known.report), started(new.report)
    if new.report.scope != NODE or (new.report.run_id != known.report.run_id and began != begins):
        which, counts = "newest", new if begins >= began else known
    elif replaces:
        which, counts = "last pod's", new
    else:
        which = "worst"
        counts = min((new, known), key=lambda source: WORST_FIRST.index(source.judged.verdict))
    of, other = map(_described, (counts, known if counts is new else new))
    note = f"{subject(new.report)}: the {which} of several reports counts: {of}; not {other}"
    return dataclasses.replace(counts, notes=(note,))


def _described(source: Source) -> str:
    report = source.report
    started_at = f"run {report.run_id}, started {report.started}"
    return f"{source.judged.verdict} of {report.pod}, {started_at}"


@dataclass(frozen=True)
class Expected:
    """The nodes that must report, by name or by number. `run_id`: reports of other runs are
    ignored.
    """

    count: int | None = None
    names: Sequence[str] = ()
    run_id: str | None = None
    # Pod without a report -> its node, the kind of finding and its state in words
    unreported: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    # node -> when its pod, which no longer exists, was last seen
    lost: Mapping[str, str] = field(default_factory=dict)
    live: bool = False  # pods that stay, or a patrol, sent the reports: their age says nothing
    world: bool = False  # a report of the checks across nodes, too
    requested: Requested | None = None  # None: every report is judged by its own request

    @property
    def nodes(self) -> int | None:
        return len(set(self.names)) or self.count


ANYTHING = Expected()
