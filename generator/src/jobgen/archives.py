"""Files inside an archive, where a credential may be, too: tar, compressed or not, and zip."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Iterator
from typing import IO

LIMIT = 16_000_000  # unpacked bytes that are read, because a small archive may unpack to any size
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\0": "lzma"}  # first bytes -> module of Python


def files(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of every file in an archive; the name of what is only compressed is empty.

    Other data have none, and of an archive that is broken or has a password the part that can be read.
    """
    for magic, module in COMPRESSED.items():
        if data.startswith(magic):
            data = _read(importlib.import_module(module).open, io.BytesIO(data), LIMIT)
            yield from [("", data)] if data[257:262] != b"ustar" else []
            break
    left = LIMIT
    for name, open_file, member in _members(data):
        content = _read(open_file, member, left)
        left -= len(content)
        yield name, content


def _members(data: bytes) -> Iterator[tuple[str, Callable, object]]:
    """Yield the name of each file, and the function that opens it with its argument."""
    import tarfile
    import zipfile

    try:
        if data[257:262] == b"ustar":
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
                yield from ((each.name, archive.extractfile, each) for each in archive)
        elif data.startswith(b"PK\x03\x04"):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                yield from ((each.filename, archive.open, each) for each in archive.infolist())
    except (tarfile.TarError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return


def _read(open_file: Callable[[object], IO[bytes] | None], member: object, limit: int) -> bytes:
    """Read at most `limit` bytes; of a broken file what comes before its fault, of one with a password nothing."""
    import lzma
    import tarfile
    import zipfile
    import zlib

    parts = []
    try:
        file = open_file(member)  # None of what is no file, such as a folder
        while file and limit > 0 and (part := file.read(min(limit, 65_536))):
            parts.append(part)
            limit -= len(part)
    except (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, OSError, EOFError, KeyError,
            ValueError, RuntimeError):  # fmt: skip
        pass  # a program could not read more of it either
    return b"".join(parts)
