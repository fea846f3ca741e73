"""What the collector knows of every node of one run."""

from __future__ import annotations

import datetime
import threading
from pathlib import Path

from gpuworker.accept.report import write_json
from gpuworker.fleet.fleet_report import Fleet
from gpuworker.fleet.merge import Expected, merge
from gpuworker.fleet.report_sources import Source, from_text

POSTED = ""  # the address of a pod that handed in its report and ended


class Store:
    """Reports by node, kept in `folder` so that a collector that starts again knows them. Safe for several threads."""

    def __init__(self, folder: Path, run_id: str, expect_nodes: int | None = None) -> None:
        self.folder, self.run_id, self.expect_nodes = folder, run_id, expect_nodes
        self.lock = threading.RLock()
        self.reports: dict[str, dict] = {}  # node -> report
        self.homes: dict[str, str] = {}  # node -> address of its pod
        self.posters: set[str] = set()  # addresses of pods that handed in their report
        self.seen: dict[str, str] = {}  # node -> when its pod was last there
        self.state: tuple = ((), (), ())  # (testing, broken, gone), what else the result is made of
        self.result: Fleet | None = None
        for path in sorted(folder.glob("*.json")):
            for source in from_text(path.name, path.read_bytes()):
                if source.report:
                    when = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.timezone.utc)
                    self.add(source.report, POSTED, when)

    def add(self, report: dict, address: str, when: datetime.datetime | None = None) -> bool:
        """Keep the newest report of a node; False if it is of another run."""
        if report["run_id"] != self.run_id:
            return False
        # Nothing plots raw samples here, and thousands of GPUs have many.
        report = {**report, "checks": [{**check, "samples": {}} for check in report["checks"]]}
        node = report["node"]
        with self.lock:
            known = self.reports.get(node)
            if known and _started(known) > _started(report):
                return True
            self.homes[node] = address
            self.seen[node] = (when or datetime.datetime.now(datetime.timezone.utc)).isoformat(timespec="seconds")
            if known != report:
                self.reports[node], self.result = report, None
                write_json(self.folder / f"{node.encode().hex()}.json", report)
        return True

    def update(self, present: set[str], testing: dict[str, str], broken: dict[str, str]) -> None:
        """After a round: addresses that are there, those without a report, and those with one that cannot be read."""
        with self.lock:
            now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
            self.seen |= {node: now for node, address in self.homes.items() if address in present}
            gone = sorted(node for node, home in self.homes.items() if home != POSTED and home not in present)
            state = tuple(sorted(testing)), tuple(sorted(broken.items())), tuple(gone)
            if state != self.state:
                self.state, self.result = state, None

    def fleet(self) -> Fleet:
        """The result of what is known now, made anew only when something has changed."""
        with self.lock:
            if self.result is None:
                testing, broken, gone = self.state
                sources = [Source(node, report) for node, report in self.reports.items()]
                sources += [Source(f"pod {address}", error=why) for address, why in broken]
                last_seen = {node: self.seen[node] for node in gone}
                self.result = merge(sources, Expected(self.expect_nodes, (), self.run_id, testing, last_seen))
            return self.result


def _started(report: dict) -> datetime.datetime:
    return datetime.datetime.fromisoformat(report["started"])
