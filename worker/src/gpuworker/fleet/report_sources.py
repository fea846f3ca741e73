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
from gpuworker.runtime.plain_files import read_plain

PREFIX = re.compile(r"^\[pod/([^/\]]+)/[^\]]+\] ")  # of every line of `kubectl logs --prefix`

MOST_REPORT_BYTES = 2 << 20  # a node of 8 GPUs has 0.3 MB
MOST_NAMED = 8
MOST_FILE_BYTES = 1 << 30  # of a log with the reports of many nodes
DECORATION = re.compile(r"^\ufeff|\x1b\[[0-9;]*[mK]", re.MULTILINE)  # byte order mark, and colours of a log


@dataclass(frozen=True)
class Source:
    """One place that should hold a report: the report, or the problem with it, or notes alone."""

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
        return from_text(path, file.read_bytes())  # also of a pipe: accept-report merge <(kubectl logs POD)
    except OSError as error:
        return [Source(path, error=f"cannot be read: {error.strerror}")]


def from_folder(folder: Path) -> list[Source]:
    """Every *.json and *.log below the folder. JSON files that are evidently no reports, such as the outputs of merge,
    are named in a note."""
    found, others = [], []
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".json", ".log") and not path.is_dir()):
        sources = from_file(path, MOST_FILE_BYTES, follow=True)
        others += [source.name for source in sources if source.error == NOT_A_REPORT]
        found += [source for source in sources if source.error != NOT_A_REPORT]
    if found and others:
        names = ", ".join(others[:MOST_NAMED]) + f" and {len(others) - MOST_NAMED} more" * (len(others) > MOST_NAMED)
        found.append(Source(str(folder), notes=(f"{names}: skipped, {NOT_A_REPORT}",)))
    return found or [Source(str(folder), error="no report in this folder (*.json, *.log)")]


def from_file(file: Path, most: int, follow: bool = False) -> list[Source]:
    """The sources of a file that others may have replaced by a pipe or a device. `follow`: or by a link."""
    try:
        data = read_plain(file, most + 1, follow)
    except OSError as error:
        return [Source(str(file), error=f"cannot be read: {error.strerror}")]
    if len(data) > most:
        return [Source(str(file), error=f"has more than {most} bytes")]
    return from_text(str(file), data)


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
