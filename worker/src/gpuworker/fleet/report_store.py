"""Store of the collector: the report that counts of every node of one run, in memory and on
disk.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import math
import sys
import threading
import time
from http import HTTPStatus
from pathlib import Path

from gpuworker.fleet.report_sources import MOST_REPORT_BYTES, from_file
from gpuworker.fleet.world_plan import WAIT, WorldPlan
from gpuworker.judgement.findings import subject
from gpuworker.judgement.fleet_report import Fleet
from gpuworker.judgement.judge import Judged, judge
from gpuworker.judgement.merge import merge
from gpuworker.judgement.report import NODE, WORLD, Evidence, Report, to_json
from gpuworker.judgement.sources import Expected, Source, that_counts
from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log
from gpuworker.runtime.plain_files import replace_plain

MOST_REPORTS = 4096  # if the number of nodes is not known
# characters that are not ASCII take more here than in the message
MOST_STORED_BYTES = 4 * MOST_REPORT_BYTES
LONG_MERGE_S = 0.25  # of some hundred nodes; that of a thousand takes a second
MERGES = 0.2  # of the time, while reports are expected
FACTS = ("hash_group", "gpus", "ports")  # that a merge compares
LOST_S = 90.0  # without a word of its pod; submit.py sends one every CONFIRM_S
SPARE_REPORTS = 64  # more than the expected nodes: worlds, and nodes that nobody expected


class ReportStore:
    """Reports by node, kept in `folder` so that a restarted collector has them. Safe for several
    threads.

    `stay`: the pods stay after their test and confirm every few seconds that they are there. The
    report of one that does not is no PASS: its node may be gone, or the report may be of an earlier
    installation. `patrol`: the last test of a node counts.
    """

    def __init__(
        self,
        folder: Path,
        expected: Expected,
        stay: bool = False,
        name: str = "",
        patrol: bool = False,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.expected, self.name = folder, expected, name
        self.stay, self.patrol = stay, patrol
        self.world = WorldPlan(self.forget_worlds) if expected.world else None
        self.most = expected.nodes + SPARE_REPORTS if expected.nodes else MOST_REPORTS
        self.lock = threading.RLock()  # of the reports
        self.merging = threading.Lock()  # a merge takes seconds; reports are taken meanwhile
        # node, or subject of a world report -> its report that counts
        self.sources: dict[str, Source] = {}
        self.digests: dict[str, str] = {}  # digest of a report as it was sent -> node
        self.senders: dict[str, str] = {}  # node -> address that sent its report, or the same again
        self.shown: tuple[dict[str, str], list[str]] = {}, []  # marks of nodes, and alerts
        # node -> when its pod was heard of last, by the monotonic clock and for people
        self.heard: dict[str, tuple[float, str]] = {}
        # pods without a report -> node, kind and state
        self.unreported: dict[str, tuple[str, str, str]] = {}
        self.lost: dict[str, str] = {}  # nodes whose pod was not heard of for LOST_S -> since when
        self.result: Fleet | None = None
        self.changes = 0  # of anything that the result depends on
        self.last: Fleet | None = None  # the last result, which may be older than the last report
        self.merged_at, self.merge_cpu_s = 0.0, 0.0
        for path in self.files():
            self._load(path)
        self.watch()

    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*.json"))

    def _load(self, path: Path) -> None:
        """A file that an earlier collector wrote. The report in one that cannot be read is missing,
        until its pod sends it again.
        """
        for source in from_file(path, MOST_STORED_BYTES):
            if source.report is None:
                log(Tag.FLEET.value, damaged=source.name, why=source.error)
            elif source.report.run_id == self.expected.run_id and len(self.sources) < self.most:
                when = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.timezone.utc)
                found = self._source(source.report, when)
                self.sources[found.name] = found
                self._hear(found.name, -math.inf, when)

    def add(self, report: Report, digest: str = "", sender: str = "") -> tuple[HTTPStatus, str]:
        """Take a report: on disk first, then in memory. `digest`: of the message that brought
        it; `sender`: where that came from.
        """
        if report.run_id != self.expected.run_id:
            words = f"the report is of run {report.run_id}; this collector has run"
            return HTTPStatus.CONFLICT, f"{words} {self.expected.run_id}"
        now, full = datetime.datetime.now(datetime.timezone.utc), HTTPStatus.INSUFFICIENT_STORAGE
        source = self._source(report, now)
        with self.lock:
            known = self.sources.get(source.name)
            if known is None and len(self.sources) >= self.most:
                return full, f"the collector has {self.most} reports, which is its limit"
            of_same_index = bool(known) and (self.patrol or _same_index(known.report, report))
            replaces = of_same_index and known.report.pod != report.pod
            counts = that_counts(known, source, replaces) if known else source
            if counts.judged is source.judged:
                try:
                    text = to_json(dataclasses.asdict(report), None) + "\n"
                    replace_plain(self.path(source.name), text.encode(), sync=True)
                except OSError as error:
                    return full, f"the report cannot be stored: {error.strerror or error}"
            if counts.judged == source.judged:
                self.senders[source.name] = sender
            if counts != known:
                self.sources[source.name] = counts
                self._changed()
            if known and known.report.scope == NODE and not of_same_index:
                # The scheduler does not keep pods of a Job from a node whose pod has ended.
                words = f"{known.report.pod} has tested {source.name} already"
                return (
                    HTTPStatus.UNPROCESSABLE_ENTITY,
                    f"{words}: fewer nodes than pods fit the Job",
                )
            self.digests[digest] = source.name
            self._hear(source.name, time.monotonic(), now)
            self.watch()
        return HTTPStatus.OK, "accepted"

    def confirm(self, digest: str) -> bool:
        """Whether the report with this digest is here. Its pod is."""
        with self.lock:
            if name := self.digests.get(digest):
                self._hear(name, time.monotonic(), datetime.datetime.now(datetime.timezone.utc))
                self.watch()
            return bool(name)

    def _hear(self, name: str, at: float, when: datetime.datetime) -> None:
        self.heard[name] = at, when.isoformat(timespec="seconds")

    def watch(self, unreported: dict[str, tuple[str, str, str]] | None = None) -> None:
        """Look for pods that were not heard of. `unreported`: pods without a report, as
        Kubernetes lists them.
        """
        with self.lock:
            since, lost = time.monotonic() - LOST_S, {}
            if self.stay:
                nodes = (s.name for s in self.sources.values() if s.report.scope == NODE)
                lost = {name: self.heard[name][1] for name in nodes if self.heard[name][0] <= since}
            known = self.unreported if unreported is None else unreported
            if (lost, known) != (self.lost, self.unreported):
                self.lost, self.unreported = lost, known
                self._changed()

    def _source(self, report: Report, when: datetime.datetime) -> Source:
        judged = judge(report, self.expected.requested, when)
        compact = Judged(_compact(report), judged.checks)
        return Source(subject(report), compact.report, judged=compact)

    def _changed(self) -> None:
        self.result, self.changes = None, self.changes + 1

    def path(self, name: str) -> Path:
        return self.folder / f"{hashlib.sha256(name.encode()).hexdigest()}.json"

    def show(self, marks: dict[str, str], alerts: list[str]) -> None:
        """Show what became of the nodes."""
        with self.lock:
            if self.shown != (marks, alerts):
                self.shown = marks, alerts
                self._changed()

    def waiting(self) -> bool:
        """Whether reports are expected that would change the result."""
        fleet = self.fleet()
        return self.lacking(fleet) or bool(self.world and self.world.pending(fleet))

    def lacking(self, fleet: Fleet) -> bool:
        """Whether nodes have no report, or their pods are gone or still test."""
        coverage = fleet.coverage
        few = coverage.nodes_reported < (coverage.nodes_expected or 1)
        return bool(self.lost or self.unreported or few)

    def order(self, node: str, address: str) -> dict:
        """The part of an idle pod in the checks across nodes."""
        fleet = self.fleet()
        return WAIT if self.lacking(fleet) else self.world.order(node, address, fleet)

    def forget_worlds(self) -> None:
        """Reports of checks across nodes no longer count: these run again."""
        with self.lock:
            for name, source in list(self.sources.items()):
                if source.report.scope == WORLD:
                    del self.sources[name]
                    self.path(name).unlink(missing_ok=True)
                    self._changed()

    def fleet(self) -> Fleet:
        """The current result. It is the same object until something changes.

        While reports are expected, a large fleet is merged now and then, so that merges do not
        delay the reports.
        """
        with self.merging:
            spent = time.thread_time()
            with self.lock:
                if self.result is not None:
                    return self.result
                more = len(self.sources) < (self.expected.nodes or 0)
                recent = time.monotonic() - self.merged_at < self.merge_cpu_s / MERGES
                if self.last and more and recent and self.merge_cpu_s > LONG_MERGE_S:
                    return self.last
                sources, change, (marks, alerts) = (
                    [*self.sources.values()],
                    self.changes,
                    self.shown,
                )
                pods = {"lost": self.lost, "unreported": self.unreported}
            pods["live"] = self.stay or self.patrol
            merged = merge(sources, dataclasses.replace(self.expected, **pods))
            merged.name, merged.marks, merged.notes = self.name, marks, alerts + merged.notes
            with self.lock:
                if change == self.changes:
                    self.result = merged
            self.last, self.merged_at = merged, time.monotonic()
            self.merge_cpu_s = time.thread_time() - spent
            return merged


def _same_index(one: Report, other: Report) -> bool:
    """Whether two pods of a Job have the same index, so that one replaces the other."""
    return one.pod.rpartition("-")[0] == other.pod.rpartition("-")[0]


def _compact(report: Report) -> Report:
    """What a merge needs beside the judged numbers: thousands of reports are kept, each with
    hundreds of them.
    """
    checks = []
    for check in report.checks:
        facts = {key: check.facts[key] for key in FACTS if key in check.facts}
        hashes = {sys.intern(key): value for key, value in check.hashes.items()}
        checks.append(Evidence(facts=facts, hashes=hashes, name=check.name))
    return dataclasses.replace(report, checks=checks)
