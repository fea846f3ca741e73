"""Store of the collector: the newest report of every node of one run, in memory and on disk."""

from __future__ import annotations

import datetime
import hashlib
import threading
from pathlib import Path

from gpuworker.accept.report import write_json
from gpuworker.fleet.check_findings import subject
from gpuworker.fleet.fleet_report import Fleet
from gpuworker.fleet.merge import Expected, merge
from gpuworker.fleet.report_sources import Source, from_text

SUBMITTED = ""  # stands for the address of a pod that submitted its report and ended


class ReportStore:
    """Reports by node, kept in `folder` so that a restarted collector has them. Safe for several threads."""

    def __init__(self, folder: Path, run_id: str, expect_nodes: int | None = None) -> None:
        self.folder, self.run_id, self.expect_nodes = folder, run_id, expect_nodes
        self.lock = threading.RLock()
        self.reports: dict[str, dict] = {}  # node, or subject of a world report -> report
        self.addresses: dict[str, str] = {}  # node -> address of its pod
        self.submitters: set[str] = set()  # addresses of pods that submitted their report
        self.last_seen: dict[str, str] = {}  # node -> when its pod was last listed
        self.state: tuple = ((), (), ())  # pending, unreadable and lost pods
        self.result: Fleet | None = None
        for path in sorted(folder.glob("*.json")):
            for source in from_text(path.name, path.read_bytes()):
                if source.report:
                    when = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.timezone.utc)
                    self.add(source.report, SUBMITTED, when)

    def add(self, report: dict, address: str, when: datetime.datetime | None = None) -> bool:
        """Keep the newest report of a node. Return False if the report is of another run."""
        if report["run_id"] != self.run_id:
            return False
        # Raw samples are not used, and thousands of GPUs have many.
        report = {**report, "checks": [{**check, "samples": {}} for check in report["checks"]]}
        node = subject(report)
        with self.lock:
            known = self.reports.get(node)
            if known and _started(known) > _started(report):
                return True
            self.addresses[node] = address
            self.last_seen[node] = (when or datetime.datetime.now(datetime.timezone.utc)).isoformat(timespec="seconds")
            if known != report:
                self.reports[node], self.result = report, None
                write_json(self.folder / f"{hashlib.sha256(node.encode()).hexdigest()}.json", report)
        return True

    def update(self, present: set[str], pending: set[str], unreadable: dict[str, str]) -> None:
        """Set the addresses of all pods, of pods without a report, and of pods with an unreadable report."""
        with self.lock:
            now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
            self.last_seen |= {node: now for node, address in self.addresses.items() if address in present}
            lost = sorted(node for node, at in self.addresses.items() if at != SUBMITTED and at not in present)
            state = tuple(sorted(pending)), tuple(sorted(unreadable.items())), tuple(lost)
            if state != self.state:
                self.state, self.result = state, None

    def fleet(self) -> Fleet:
        """The current result. It is the same object until something changes."""
        with self.lock:
            if self.result is None:
                pending, unreadable, lost = self.state
                sources = [Source(node, report) for node, report in self.reports.items()]
                sources += [Source(f"pod {address}", error=problem) for address, problem in unreadable]
                lost_nodes = {node: self.last_seen[node] for node in lost}
                self.result = merge(sources, Expected(self.expect_nodes, (), self.run_id, pending, lost_nodes))
            return self.result


def _started(report: dict) -> datetime.datetime:
    return datetime.datetime.fromisoformat(report["started"])
