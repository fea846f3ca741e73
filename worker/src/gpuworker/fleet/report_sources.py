"""Reads reports: from files and folders, and from what was posted, and how large one may be.

A file has one report, or one per line, as the page saves them, or as a pod logs the one that it
could not send. Lines of a log may have a prefix, or be texts in JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gpuworker.judgement.reading import LONGEST_NAME, NOT_A_REPORT, report_of
from gpuworker.judgement.report import parsed
from gpuworker.judgement.sources import Source
from gpuworker.runtime.plain_files import read_plain

MOST_REPORT_BYTES = 2 << 20  # a node of 8 GPUs has 0.3 MB
MOST_NAMED = 8
BEGIN = '{"'  # of JSON
MOST_FILE_BYTES = 1 << 30  # of a file with the reports of many nodes


def read(path: str) -> list[Source]:
    """All sources of one argument: a file, a folder with files, or "-" for standard input."""
    if path == "-":
        return from_text("standard input", sys.stdin.buffer.read())
    if Path(path).is_dir():
        return from_folder(Path(path))
    try:  # also of a pipe: accept-report merge <(curl …)
        return from_text(path, Path(path).read_bytes())
    except OSError as error:
        return [Source(path, error=f"cannot be read: {error.strerror}")]


def from_folder(folder: Path) -> list[Source]:
    """Every *.json and *.jsonl below the folder. JSON files that are evidently no reports are
    named in a note.
    """
    found, others = [], []
    for path in sorted(folder.rglob("*.json*")):
        if path.suffix in (".json", ".jsonl") and not path.is_dir():
            for source in from_file(path, MOST_FILE_BYTES, follow=True):
                if source.error == NOT_A_REPORT:
                    others.append(source.name)
                else:
                    found.append(source)
    if not found:
        return [Source(str(folder), error="no report in this folder (*.json, *.jsonl)")]
    names = ", ".join(others[:MOST_NAMED]) + " …" * (len(others) > MOST_NAMED)
    note = (f"{names}: skipped, {NOT_A_REPORT}",) * bool(others)
    return [*found, Source(str(folder), notes=note)]


def from_file(file: Path, most: int, follow: bool = False) -> list[Source]:
    """The sources of a file that others may have replaced by a pipe or a device. `follow`: or by
    a link.
    """
    try:
        data = read_plain(file, most + 1, follow)
    except OSError as error:
        return [Source(str(file), error=f"cannot be read: {error.strerror}")]
    if len(data) > most:
        return [Source(str(file), error=f"has more than {most} bytes")]
    return from_text(str(file), data)


def from_text(name: str, data: bytes) -> list[Source]:
    """One report as JSON, or one per line among other lines."""
    text = data.decode(errors="replace").removeprefix("\ufeff")
    if "{" not in text:
        return [Source(name, error="has no report" if text.strip() else "is empty")]
    if (whole := _source(name, text)).report:
        return [whole]
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line[max(0, line.find(BEGIN)) :].strip()
        if line.startswith("{"):
            found.append(_source(f"{name}: line {number}", line))
    found = [source for source in found if source.error != NOT_A_REPORT]
    return found if any(source.report for source in found) else [whole]


def _source(name: str, text: str) -> Source:
    found: object = None
    try:
        found = parsed(text)
        if isinstance(found, dict) and "checks" not in found:
            texts = [each for each in found.values() if isinstance(each, str)]
            found = next((parsed(each) for each in texts if each.startswith(BEGIN)), found)
        return Source(name, report_of(found))
    except json.JSONDecodeError as error:
        return Source(name, error=f"not readable as JSON: {error}")
    except (ValueError, RecursionError) as error:
        node = found.get("node") if isinstance(found, dict) else ""
        known = isinstance(node, str) and len(node) <= LONGEST_NAME and node.isprintable()
        return Source(name, error=str(error), node=node if known else "")
