"""Files inside archives, where a credential may be, too: tar and zip, compressed by gzip, bzip2 or xz, also nested."""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator
from typing import IO

LIMIT = 16_000_000  # unpacked bytes that are read, because a small archive may unpack to any size
DEPTH = 4  # of archives in archives; a compressed tar is two
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\0": "lzma"}  # first bytes -> module of Python


def files(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of every file in an archive; the name of what is only compressed is empty.

    Other data have none, and of an archive that is broken or has a password the part that can be read.
    """
    return _files(data, [LIMIT], DEPTH)


def _files(data: bytes, left: list[int], depth: int) -> Iterator[tuple[str, bytes]]:
    for name, content in _members(data, left):
        if depth > 1:
            yield from _files(content, left, depth - 1)
        yield name, content


def _members(data: bytes, left: list[int]) -> Iterator[tuple[str, bytes]]:
    """Yield the files of the outermost archive."""
    for magic, module in COMPRESSED.items():
        if data.startswith(magic):
            yield "", _read(importlib.import_module(module).open(io.BytesIO(data)), left)
    if data.startswith(b"PK\x03\x04"):
        yield from _zip(data, left)
    elif data[257:262] == b"ustar":
        yield from _tar(data, left)


def _zip(data: bytes, left: list[int]) -> Iterator[tuple[str, bytes]]:
    import zipfile

    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return
    for member in archive.infolist():
        try:
            content = _read(archive.open(member), left)
        except (zipfile.BadZipFile, RuntimeError, ValueError):  # for example encrypted: its name is known
            content = b""
        yield member.filename, content


def _tar(data: bytes, left: list[int]) -> Iterator[tuple[str, bytes]]:
    import tarfile

    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                yield member.name, _read(file, left) if file else b""
    except (tarfile.TarError, ValueError):
        return


def _read(file: IO[bytes], left: list[int]) -> bytes:
    """Read what is left of the limit; of a broken file what comes before its fault."""
    import lzma
    import zlib

    parts = []
    try:
        while left[0] > 0 and (part := file.read(min(left[0], 65_536))):
            parts.append(part)
            left[0] -= len(part)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError, NotImplementedError):
        pass  # a program could not read more of it either
    return b"".join(parts)
