"""Where node reports come from: files, folders, and what `kubectl logs` prints.

Nothing is dropped in silence: what cannot be read is kept with its name and the reason, and makes the fleet INCOMPLETE.
"""

from __future__ import annotations

import datetime
import json
import re
import sys
from collections.abc import Callable, Iterator
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
    """The report, if all that is used of it is what it should be: nothing that a node says ends this program.

    Raises ValueError with what is wrong.
    """
    if not isinstance(report, dict) or "checks" not in report:
        raise ValueError(NO_REPORT)
    if report.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"schema_version {report.get('schema_version')!r}; this accept-report reads {SCHEMA_VERSION}")
    json.dumps(report, ensure_ascii=False).encode()  # half a character (\ud800) fits into JSON and into no file
    texts = ("node", "pod", "run_id", "device", "level", "started", "reason", "injected")
    _expect(report, "a damaged report", dict.fromkeys(texts, _text) | {"facts": _object, "checks": _list})
    if not report["node"]:
        raise ValueError("a damaged report: it does not say which node it is of")
    if report.get("verdict") not in VERDICTS:
        raise ValueError(f"a damaged report: verdict is {report.get('verdict')!r}")
    if datetime.datetime.fromisoformat(report["started"]).tzinfo is None:
        raise ValueError(f"a damaged report: started is {report['started']!r}, without a time zone")
    coverage = report.get("coverage")
    counts = ("checks_expected", "checks_reported", "gpus_expected", "gpus_seen")
    if not isinstance(coverage, dict) or not all(_count(coverage.get(key)) for key in counts):
        raise ValueError(f"a damaged report: coverage is {str(coverage)[:80]}")
    for check in report["checks"]:
        _check(check)
    return report


def _check(check: object) -> None:
    if not isinstance(check, dict) or not _text(check.get("name")) or check.get("verdict") not in VERDICTS:
        raise ValueError(f"a damaged report: a check without name or verdict: {str(check)[:80]}")
    where = f"a damaged report: check {check['name']}"
    _expect(check, where, {"reason": _text, "facts": _object, "hashes": _hashes, "measurements": _list})
    for m in check["measurements"]:
        words = isinstance(m, dict) and all(_text(m.get(key)) for key in ("name", "unit", "device", "limit_source"))
        if not words or "value" not in m or not all(_number(m.get(key)) for key in ("value", "limit", "warn_limit")):
            raise ValueError(f"{where}: a measurement without name, unit, device or value: {str(m)[:80]}")
    for name, curve in check["facts"].get("curves", {}).items():
        points = curve.get("points") if isinstance(curve, dict) and _text(curve.get("unit")) else None
        if not points or not isinstance(points, list) or not all(_point(point) for point in points):
            raise ValueError(f"{where}: curve {name} is {str(curve)[:80]}")


def _expect(holder: dict, where: str, kinds: dict[str, Callable[[object], bool]]) -> None:
    for key, fits in kinds.items():
        if not fits(holder.get(key)):
            raise ValueError(f"{where}: {key} is {str(holder.get(key))[:80]!r}")


def _text(value: object) -> bool:
    return isinstance(value, str)


def _list(value: object) -> bool:
    return isinstance(value, list)


def _object(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("curves", {}), dict)


def _hashes(value: object) -> bool:
    return isinstance(value, dict) and all(_text(item) for item in value.values())


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _number(value: object) -> bool:
    """Null stands for what was no finite number. Nothing that is measured needs more than a hundred digits."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e100)


def _point(point: object) -> bool:
    """[size, value]"""
    pair = isinstance(point, list) and len(point) == 2 and None not in point
    return pair and all(_number(number) for number in point) and point[0] > 0


def _why(error: Exception) -> str:
    return f"not readable as JSON: {error}" if isinstance(error, json.JSONDecodeError) else str(error)
