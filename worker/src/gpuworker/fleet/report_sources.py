"""Sources of reports: files, folders, and the output of `kubectl logs`.

A source that cannot be read is kept with its name and the problem, and makes the fleet INCOMPLETE.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuworker.accept.report import from_log_lines, parsed
from gpuworker.fleet.fleet_report import Finding
from gpuworker.fleet.report_form import NOT_A_REPORT, validated

PREFIX = re.compile(r"^\[pod/([^/\]]+)/[^\]]+\] ")  # of every line of `kubectl logs --prefix`

DECORATION = re.compile(r"^\ufeff|\x1b\[[0-9;]*[mK]", re.MULTILINE)  # byte order mark, and colours of a log


@dataclass(frozen=True)
class Source:
    """One place that should hold a report: the report, or the problem with it."""

    name: str
    report: dict | None = None
    error: str = ""
    findings: tuple[Finding, ...] | None = None  # of the report alone, if they are known already
    notes: tuple[str, ...] = ()


def read(path: str) -> list[Source]:
    """All sources of one argument: a file, a folder with files, or "-" for standard input."""
    if path == "-":
        return from_text("standard input", sys.stdin.buffer.read())
    file = Path(path)
    if file.is_dir():
        return from_folder(file)
    try:
        return from_text(path, file.read_bytes())
    except OSError as error:
        return [Source(path, error=f"cannot be read: {error.strerror}")]


def from_folder(folder: Path) -> list[Source]:
    """Every *.json and *.log below the folder, without JSON files that are not reports."""
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".json", ".log") and path.is_file()):
        sources = read(str(path))
        found += [source for source in sources if source.error != NOT_A_REPORT]
    return found or [Source(str(folder), error="no report in this folder (*.json, *.log)")]


def from_text(name: str, data: bytes) -> list[Source]:
    """One report as JSON, or a log with any number of reports."""
    text = DECORATION.sub("", data.decode(errors="replace"))
    if not text.lstrip().startswith("{"):
        return list(_from_log(name, text))
    try:
        return [Source(name, validated(parsed(text)))]
    except (ValueError, RecursionError) as error:
        return [Source(name, error=_describe(error))]


def _from_log(name: str, text: str) -> Iterator[Source]:
    """The reports of a log. Every pod with a line in the log must have a report in it."""
    pods: dict[str, list[str]] = {}
    for line in text.splitlines():
        prefix = PREFIX.match(line)
        pods.setdefault(f"{name}: pod {prefix[1]}" if prefix else name, []).append(line)
    if len(pods) > 1:
        pods.pop(name, None)  # messages of kubectl itself
    if not pods:
        yield Source(name, error="is empty")
    for source, lines in pods.items():
        try:
            reports = [validated(report) for report in from_log_lines(lines)]
        except ValueError as error:
            yield Source(source, error=_describe(error))
            continue
        if not reports:
            yield Source(source, error="no [REPORT] line: the test is running, was killed, or --tail cut the log")
        yield from (Source(source, report) for report in reports)


def _describe(error: Exception) -> str:
    return f"not readable as JSON: {error}" if isinstance(error, json.JSONDecodeError) else str(error)
