"""Where node reports come from: files, folders, and what `kubectl logs` prints.

Nothing is dropped in silence: what cannot be read is kept with its name and the reason, and makes the fleet INCOMPLETE.
"""

from __future__ import annotations

import datetime
import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuworker.accept.report import FAIL, INCOMPLETE, PASS, SCHEMA_VERSION, SKIP, WARN, from_log_lines

VERDICTS = (FAIL, INCOMPLETE, WARN, PASS, SKIP)
PREFIX = re.compile(r"^\[pod/([^/\]]+)/[^\]]+\] ")  # what `kubectl logs --prefix` puts before every line


@dataclass(frozen=True)
class Source:
    """One place that should hold a node's report: the report, or why there is none."""

    name: str
    report: dict | None = None
    error: str = ""


NO_REPORT = "JSON, but no report of a node"


def read(path: str) -> list[Source]:
    """All sources behind one argument: "-" is standard input, a folder stands for the files in it."""
    if path == "-":
        return from_text("standard input", sys.stdin.buffer.read())
    place = Path(path)
    if place.is_dir():
        return from_folder(place)
    try:
        return from_text(path, place.read_bytes())
    except OSError as error:
        return [Source(path, error=f"cannot be read: {error.strerror}")]


def from_folder(folder: Path) -> list[Source]:
    """Every *.json and *.log below the folder. JSON of another kind, such as a result of ddp-tests, is left out."""
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".json", ".log") and path.is_file()):
        sources = read(str(path))
        found += [source for source in sources if source.error != NO_REPORT]
    return found or [Source(str(folder), error="no node report in this folder (*.json, *.log)")]


def from_text(name: str, data: bytes) -> list[Source]:
    """One report as JSON, or a log with any number of them."""
    text = data.decode(errors="replace")
    if not text.lstrip().startswith("{"):
        return list(_from_log(name, text))
    try:
        return [Source(name, checked(json.loads(text)))]
    except (ValueError, RecursionError) as error:
        return [Source(name, error=_why(error))]


def _from_log(name: str, text: str) -> Iterator[Source]:
    """Every pod whose lines are in the log must have a report there."""
    pods: dict[str, list[str]] = {}
    for line in text.splitlines():
        prefix = PREFIX.match(line)
        pods.setdefault(f"{name}: pod {prefix[1]}" if prefix else name, []).append(line)
    if len(pods) > 1:
        pods.pop(name, None)  # kubectl's own remarks between the lines of pods
    if not pods:
        yield Source(name, error="empty")
    for source, lines in pods.items():
        try:
            reports = [checked(report) for report in from_log_lines(lines)]
        except ValueError as error:
            yield Source(source, error=_why(error))
            continue
        if not reports:
            yield Source(source, error="its log has no [REPORT] line: not done yet, killed, or cut off by --tail")
        yield from (Source(source, report) for report in reports)


def checked(report: object) -> dict:
    """The report, if it has the parts that everything here relies on. Raises ValueError."""
    if not isinstance(report, dict) or "checks" not in report:
        raise ValueError(NO_REPORT)
    if report.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"schema_version {report.get('schema_version')!r}; this accept-report reads {SCHEMA_VERSION}")
    for key in ("node", "pod", "run_id", "device", "level", "started", "verdict", "reason"):
        if not isinstance(report.get(key), str):
            raise ValueError(f"a damaged report: {key} is {report.get(key)!r}")
    if not report["node"]:
        raise ValueError("a damaged report: it does not say which node it is of")
    if datetime.datetime.fromisoformat(report["started"]).tzinfo is None:
        raise ValueError(f"a damaged report: started is {report['started']!r}, without a time zone")
    coverage = report.get("coverage")
    numbers = ("checks_expected", "checks_reported", "gpus_expected", "gpus_seen")
    if not isinstance(coverage, dict) or not all(isinstance(coverage.get(key), int) for key in numbers):
        raise ValueError(f"a damaged report: coverage is {coverage!r}")
    if not isinstance(report.get("facts"), dict):
        raise ValueError(f"a damaged report: facts is {report.get('facts')!r}")
    if not isinstance(report["checks"], list):
        raise ValueError("a damaged report: checks is no list")
    for check in report["checks"]:
        _check_one(check)
    if report["verdict"] not in VERDICTS:
        raise ValueError(f"a damaged report: verdict is {report['verdict']!r}")
    return report


def _check_one(check: object) -> None:
    if not isinstance(check, dict) or not isinstance(check.get("name"), str) or check.get("verdict") not in VERDICTS:
        raise ValueError(f"a damaged report: a check without name or verdict: {str(check)[:80]}")
    where = f"a damaged report: check {check['name']}"
    for key, kind in (("reason", str), ("facts", dict), ("hashes", dict), ("measurements", list)):
        if not isinstance(check.get(key), kind):
            raise ValueError(f"{where}: {key} is {check.get(key)!r}")
    for measurement in check["measurements"]:
        texts = isinstance(measurement, dict) and all(
            isinstance(measurement.get(key), str) for key in ("name", "unit", "device")
        )
        if not texts or not _number(measurement.get("value")):
            raise ValueError(f"{where}: a measurement without name, unit, device or value: {str(measurement)[:80]}")


def _number(value: object) -> bool:
    """Null stands for what was no finite number."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value))


def _why(error: Exception) -> str:
    return f"not readable as JSON: {error}" if isinstance(error, json.JSONDecodeError) else str(error)
