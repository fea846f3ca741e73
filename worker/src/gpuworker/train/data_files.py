"""Files of training data, and their lines, shared between processes.

--data names a file, a folder or a pattern. All files together are one sequence of bytes, of which each process reads a
range. A compressed file cannot be entered in its middle, so one process reads it as a whole.
"""

from __future__ import annotations

import glob
import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

GZIP = ".gz"
SUFFIXES = (".jsonl", ".jsonl.gz")
VALIDATION = "val.jsonl"
OTHERS = (".parquet", ".arrow", ".zst", ".bz2", ".xz", ".zip", ".tar")


class DataError(ValueError):
    """Data that cannot be used. The message starts with file and line."""


class Line(NamedTuple):
    path: Path
    number: int | None  # None: `offset` says where the line begins
    offset: int
    text: bytes

    @property
    def place(self) -> str:
        return f"{self.path}:{self.number or line_number(self.path, self.offset)}"


def find_files(named: str, without: Iterable[Path] = ()) -> list[Path]:
    """The files of --data, sorted by name. Of a folder these are all *.jsonl and *.jsonl.gz; `without` are left out."""
    path = Path(named)
    if path.is_dir():
        found, problem = [each for each in path.iterdir() if each.name.endswith(SUFFIXES)], "no *.jsonl or *.jsonl.gz"
    elif path.exists() or not glob.has_magic(named):
        found, problem = [path] if path.is_file() else [], "no such file"
    else:
        found, problem = [each for each in map(Path, glob.glob(named, recursive=True)) if each.is_file()], "no file"
    if len(found) > 1:
        others = {each.resolve() for each in without}
        found = [each for each in found if each.resolve() not in others]
    if not found:
        raise DataError(f"{named}: {problem}")
    for each in found:
        if each.name.endswith(OTHERS):
            raise DataError(f"{each}: neither JSON lines nor these compressed with gzip: convert it to *.jsonl.gz")
    return sorted(found)


def default_validation(named: str) -> list[Path]:
    """val.jsonl in the folder of --data, unless it is --data itself."""
    path = Path(named)
    found = path / VALIDATION if path.is_dir() else path.with_name(VALIDATION)
    return [found] if found.is_file() and found.resolve() != path.resolve() else []


def read_lines(files: list[Path], part: int, parts: int) -> Iterator[Line]:
    """Lines that begin in the given part of all files' bytes. A compressed file counts as its first byte."""
    total, before = sum(path.stat().st_size for path in files), 0
    start, end = total * part // parts, total * (part + 1) // parts
    for path in files:
        size = path.stat().st_size
        if path.suffix == GZIP:
            if start <= before < end:
                yield from read_compressed(path)
        elif before < end and before + size > start:
            yield from read_range(path, max(0, start - before), min(size, end - before))
        before += size


def read_range(path: Path, start: int, end: int) -> Iterator[Line]:
    with path.open("rb") as file:
        if start:
            file.seek(start - 1)
            file.readline()  # the rest of a line that began before
        while (offset := file.tell()) < end and (text := file.readline()):
            yield Line(path, None, offset, text)


def read_compressed(path: Path) -> Iterator[Line]:
    with gzip.open(path) as file:
        number = 0
        while True:
            try:
                text = file.readline()
            except (EOFError, OSError, zlib.error) as error:
                if isinstance(error, OSError) and error.errno:
                    raise
                raise DataError(f"{path}:{number + 1}: not a whole gzip file: {error}") from None
            if not text:
                return
            number += 1
            yield Line(path, number, 0, text)


def line_number(path: Path, offset: int) -> int:
    """Line number of a byte offset. Computed for error messages only."""
    with path.open("rb") as file:
        count = 1
        while offset > 0 and (block := file.read(min(offset, 1 << 20))):
            count, offset = count + block.count(b"\n"), offset - len(block)
    return count
