"""Files of training data, and their lines, shared between processes.

--data names a file, a folder or a pattern. All files together are one sequence of bytes, of which each process reads a
range. A compressed file cannot be entered in its middle, so one process reads it as a whole, and so are the row groups
of Parquet.
"""

from __future__ import annotations

import glob
import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from gpuworker.train import compressed_lines, parquet_rows

COMPRESSED, PARQUET = (".gz", ".zst"), ".parquet"
SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", PARQUET)
OTHERS = (".arrow", ".bz2", ".xz", ".zip", ".tar")
KEYS = ("messages", "prompt", "completion", "text")  # of a line, or columns


class DataError(ValueError):
    """Data that cannot be used. The message starts with file and line."""


class Line(NamedTuple):
    path: Path
    number: int | None  # None: `offset` says where the line begins
    offset: int
    text: bytes
    row: dict | None = None  # of Parquet, in place of the text

    @property
    def place(self) -> str:
        if self.row is not None:
            return f"{self.path}: row {self.number}"
        return f"{self.path}:{self.number or line_number(self.path, self.offset)}"


def find_files(named: str, without: Iterable[Path] = (), of_validation: bool = False) -> list[Path]:
    """The files of --data or --val, sorted by name. Of a folder: known suffixes that are not hidden.

    `without` is left out, and of --data what has the name of validation data. Raises DataError.
    """
    path = Path(named)
    if path.is_dir():
        found = [each for each in path.iterdir() if each.name.endswith(SUFFIXES) and not each.name.startswith(".")]
        problem = f"no *{', *'.join(SUFFIXES)}"
    elif path.exists() or not glob.has_magic(named):
        found, problem = [path], "no such file"
    else:
        found, problem = [Path(each) for each in glob.glob(named, recursive=True)], "no file"
    if found != [path]:  # who names one file means it
        others, meant = {each.resolve() for each in without}, of_validation or path.name.startswith("val.")
        left = [each for each in found if each.resolve() not in others and (meant or not for_validation(each))]
        if found and not left:
            problem = "no file but the validation data"
        found = left
    entered = {folder for each in found for folder in each.parents}
    found = [each for each in found if (each.name.endswith(SUFFIXES) and each not in entered) or not each.is_dir()]
    for each in found:
        require_file(each)
    if not found:
        raise DataError(f"{named}: {problem}")
    for each in found:
        if each.name.endswith(OTHERS):
            raise DataError(f"{each}: neither JSON lines, nor compressed with gzip or zstd, nor Parquet: convert it")
        require_package(each)
    return sorted(found)


def for_validation(path: Path) -> bool:
    return path.name.startswith("val.") and path.name.endswith(SUFFIXES)


def require_file(path: Path) -> None:
    """Raise DataError unless it is a file: ranks cannot read a pipe or a device in parts."""
    if path.is_dir():
        raise DataError(f"{path}: a folder: name its files, as in '{path}/*'")
    if not path.exists():
        target = f": it links to {path.readlink()}, which does not exist" if path.is_symlink() else ""
        raise DataError(f"{path}: no such file{target}")
    if not path.is_file():
        raise DataError(f"{path}: not a regular file: write the data into one")


def require_package(path: Path) -> None:
    package = {".zst": "backports.zstd", PARQUET: "pyarrow"}.get(path.suffix)
    try:
        if path.suffix == ".zst":
            compressed_lines.zstd()
        elif path.suffix == PARQUET:
            importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise DataError(
            f"{path}: needs the Python package {package}: add it to the image, or convert the file to *.jsonl.gz"
        ) from None


def default_validation(named: str) -> list[Path]:
    """val.jsonl in the folder of --data, or the same in another format, unless it is --data itself.

    Raises DataError if there are several.
    """
    path = Path(named)
    folder = path if path.is_dir() else path.parent
    while glob.has_magic(str(folder)):
        folder = folder.parent
    found = [each for each in (folder / f"val{suffix}" for suffix in SUFFIXES) if os.path.lexists(each)]
    found = [each for each in found if each.resolve() != path.resolve()]
    for each in found:
        require_file(each)
    if len(found) > 1:
        raise DataError(f"{found[0]} and {found[1].name}: which is the validation data? Name it with --val")
    return found


def read_lines(files: list[Path], part: int, parts: int) -> Iterator[Line]:
    """Lines that begin in the given part of all files' bytes.

    A compressed file counts as its first byte. The row groups of Parquet count as if they had the same size.
    """
    total, before = sum(path.stat().st_size for path in files), 0
    start, end = total * part // parts, total * (part + 1) // parts
    for path in files:
        size = path.stat().st_size
        if path.suffix in COMPRESSED:
            if start <= before < end:
                yield from read_compressed(path)
        elif path.suffix == PARQUET:
            yield from read_parquet(path, lambda place, first=before, size=size: start <= first + place * size < end)
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
    number = 0
    try:
        for text in compressed_lines.read_lines(path):
            number += 1
            yield Line(path, number, 0, text)
    except ValueError as error:
        raise DataError(f"{path}:{number + 1}: {error}") from None


def read_parquet(path: Path, wanted: Callable[[float], bool]) -> Iterator[Line]:
    try:
        for number, row in parquet_rows.read_rows(path, KEYS, wanted):
            yield Line(path, number, 0, b"", row)
    except (ValueError, LookupError) as error:
        raise DataError(f"{path}: {error.args[0]}") from None


def line_number(path: Path, offset: int) -> int:
    """Line number of a byte offset. Computed for error messages only."""
    with path.open("rb") as file:
        count = 1
        while offset > 0 and (block := file.read(min(offset, 1 << 20))):
            count, offset = count + block.count(b"\n"), offset - len(block)
    return count
