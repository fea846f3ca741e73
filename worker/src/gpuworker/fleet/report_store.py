"""Store of the collector: the report that counts of every node of one run, in memory and on disk."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType

from gpuworker.accept.report import NODE, write_json
from gpuworker.fleet.check_findings import subject
from gpuworker.fleet.compact import compact
from gpuworker.fleet.evidence import own_verdict, report_findings
from gpuworker.fleet.expected import Expected
from gpuworker.fleet.fleet_report import WORST_FIRST, Fleet
from gpuworker.fleet.merge import merge
from gpuworker.fleet.report_sources import MOST_REPORT_BYTES, Source, from_file

SUBMITTED = ""  # stands for the address of a pod that submitted its report and ended
NOT_SEEN = "?"  # stands for the address of a pod that this collector has not seen since its start
MOST_REPORTS = 4096  # if the number of nodes is not known
MOST_STORED_BYTES = 4 * MOST_REPORT_BYTES  # characters that are not ASCII take more here than in the message
LONG_MERGE_S = 0.25  # of some hundred nodes; that of a thousand takes a second
MERGES = 0.2  # of the time, while reports are expected
SPARE_REPORTS = 64  # more than the expected nodes: worlds, and nodes that nobody expected


class ReportStore:
    """Reports by node, kept in `folder` so that a restarted collector has them. Safe for several threads.

    `keep_gone`: pods submit their report and end, so a report counts although its pod no longer exists.
    """

    def __init__(self, folder: Path, expected: Expected, keep_gone: bool = False) -> None:
        self.folder, self.expected = folder, expected
        count = len(set(expected.names)) or expected.count
        self.count = count or 0
        self.most = MOST_REPORTS if count is None else count + SPARE_REPORTS
        self.lock = threading.RLock()  # of the reports
        self.merging = threading.Lock()  # a merge takes seconds; reports are taken meanwhile
        self.sources: dict[str, Source] = {}  # node, or subject of a world report -> its report that counts
        self.addresses: dict[str, str] = {}  # node -> address of its pod
        self.submitters: set[str] = set()  # addresses of pods that submitted their report
        self.last_seen: dict[str, str] = {}  # node -> when its pod was last listed
        self.damaged: list[Source] = []  # files of an earlier collector that are not reports
        self.state: tuple = ((), (), (), ())  # pending, unreadable, lost and unreported pods
        self.result: Fleet | None = None
        self.changes = 0  # of anything that the result depends on
        self.last: Fleet | None = None  # the last result, which may be older than the last report
        self.merged_at, self.merge_cpu_s = 0.0, 0.0
        for path in sorted(folder.glob("*.json")):
            self._load(path, SUBMITTED if keep_gone else NOT_SEEN)

    def _load(self, path: Path, address: str) -> None:
        """A file that an earlier collector wrote. A file that cannot be read costs its own row only."""
        for source in from_file(path, MOST_STORED_BYTES):
            if source.report is None:
                self.damaged.append(source)
            elif source.report["run_id"] == self.expected.run_id and len(self.sources) < self.most:
                when = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.timezone.utc)
                self._count(self._source(source.report, when), address, when)

    def add(self, report: dict, address: str) -> tuple[HTTPStatus, str]:
        """Take a report: on disk first, then in memory. Of several reports of a node the worst counts."""
        if report["run_id"] != self.expected.run_id:
            ours = f"this collector has run {self.expected.run_id}"
            return HTTPStatus.CONFLICT, f"the report is of run {report['run_id']}; {ours}"
        when = datetime.datetime.now(datetime.timezone.utc)
        source = self._source(report, when)
        with self.lock:
            known = self.sources.get(source.name)
            if known is None and len(self.sources) >= self.most:
                return HTTPStatus.INSUFFICIENT_STORAGE, f"the collector has {self.most} reports, which is its limit"
            new = source
            if known and known.report != source.report:
                source = _worst(known, source, address)
            if known is None or (source.report is new.report and known.report != source.report):
                try:
                    write_json(self._path(source.name), without_samples(report), indent=None)  # much faster
                except OSError as error:
                    return HTTPStatus.INSUFFICIENT_STORAGE, f"the report cannot be stored: {error.strerror or error}"
                self._mended(source.name)
            self._count(source, address, when)
        if known and address == SUBMITTED and known.report["scope"] == NODE and not _same_index(known.report, report):
            # The scheduler does not keep pods of a Job from a node whose pod has ended.
            why = f"{known.report['pod']} has tested {source.name} already: fewer nodes than pods fit the Job"
            return HTTPStatus.UNPROCESSABLE_ENTITY, why
        return HTTPStatus.OK, "accepted"

    def _source(self, report: dict, when: datetime.datetime) -> Source:
        findings = tuple(report_findings(report, self.expected.requested, when))
        return Source(subject(report), compact(report), findings=findings)

    def _count(self, source: Source, address: str, when: datetime.datetime) -> None:
        if self.sources.get(source.name) != source:
            self.sources[source.name] = source
            self._changed()
        if address not in (SUBMITTED, NOT_SEEN):  # another node's pod had this address and is gone
            others = [node for node, at in self.addresses.items() if at == address and node != source.name]
            self.addresses |= dict.fromkeys(others, NOT_SEEN)
        self.addresses[source.name] = address
        self.last_seen[source.name] = when.isoformat(timespec="seconds")

    def _mended(self, name: str) -> None:
        """The file of this name is readable again: what was wrong with it no longer counts."""
        rest = [source for source in self.damaged if source.name != str(self._path(name))]
        if len(rest) < len(self.damaged):
            self.damaged = rest
            self._changed()

    def _changed(self) -> None:
        self.result, self.changes = None, self.changes + 1

    def _path(self, name: str) -> Path:
        return self.folder / f"{hashlib.sha256(name.encode()).hexdigest()}.json"

    def reported(self) -> set[str]:
        """Addresses of the pods whose report is here."""
        with self.lock:
            return {*self.addresses.values(), *self.submitters} - {SUBMITTED, NOT_SEEN}

    def update(
        self,
        present: set[str],
        pending: set[str],
        unreadable: dict[str, str],
        unreported: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    ) -> None:
        """Set the addresses of all pods, of pods without a report, and of pods with an unreadable report.

        `unreported`: pods without a report, as Kubernetes lists them: name -> node and state.
        """
        with self.lock:
            now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
            self.last_seen |= {node: now for node, address in self.addresses.items() if address in present}
            lost = sorted(node for node, at in self.addresses.items() if at != SUBMITTED and at not in present)
            listed = tuple(sorted(unreported.items()))
            state = tuple(sorted(pending)), tuple(sorted(unreadable.items())), tuple(lost), listed
            if state != self.state:
                self.state = state
                self._changed()

    def waiting(self) -> bool:
        """Whether reports are expected that would change the result: of pods that test, and of nodes without one."""
        coverage = self.fleet().coverage
        with self.lock:
            pending, _, lost, unreported = self.state
            return bool(pending or lost or unreported or coverage.nodes_reported < (coverage.nodes_expected or 1))

    def fleet(self) -> Fleet:
        """The current result. It is the same object until something changes.

        While reports are expected, a large fleet is merged now and then, so that merges do not delay the reports.
        """
        with self.merging:
            spent = time.thread_time()
            with self.lock:
                if self.result is not None:
                    return self.result
                more = self.state[0] or len(self.sources) < self.count
                recent = time.monotonic() - self.merged_at < self.merge_cpu_s / MERGES
                if self.last and more and recent and self.merge_cpu_s > LONG_MERGE_S:
                    return self.last
                pending, unreadable, lost, unreported = self.state
                sources = [*self.sources.values(), *self.damaged]
                lost_nodes, change = {node: self.last_seen[node] for node in lost}, self.changes
            sources += [Source(f"pod {address}", error=problem) for address, problem in unreadable]
            state = {"pending": pending, "lost": lost_nodes, "unreported": dict(unreported)}
            result = merge(sources, dataclasses.replace(self.expected, **state))
            with self.lock:
                if change == self.changes:
                    self.result = result
            self.last, self.merged_at, self.merge_cpu_s = result, time.monotonic(), time.thread_time() - spent
            return result


def _same_index(one: dict, other: dict) -> bool:
    """Whether two pods of a Job have the same index, so that one replaces the other."""
    return one["pod"].rpartition("-")[0] == other["pod"].rpartition("-")[0]


def without_samples(report: dict) -> dict:
    """Raw samples are for plots of one node, and thousands of GPUs have many."""
    return {**report, "checks": [{**check, "samples": {}} for check in report["checks"]]}


def _worst(known: Source, new: Source, address: str) -> Source:
    """The source that counts, with a note about the other. The newest of two worlds; the worst of two node reports."""
    if new.report["scope"] != NODE:
        return new if new.report["started"] >= known.report["started"] else known
    verdicts = [own_verdict(source.report, source.findings) for source in (known, new)]
    counts, other = (known, new) if WORST_FIRST.index(verdicts[0]) < WORST_FIRST.index(verdicts[1]) else (new, known)
    worst = min(verdicts, key=WORST_FIRST.index)
    note = (
        f"{new.name}: several reports of this run, the worst counts: {worst} of {counts.report['started']}, not "
        f"{max(verdicts, key=WORST_FIRST.index)} of {other.report['started']}; the last came from {address or 'a post'}"
    )
    return dataclasses.replace(counts, notes=(note,))
