"""Files inside an archive, where a credential may be, too: tar, compressed or not, and zip."""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator

LIMIT = 16_000_000  # unpacked bytes that are read, because a small archive may unpack to any size
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\0": "lzma"}  # first bytes -> module of Python


def files(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of every file in an archive; the name of what is only compressed is empty.

    Other data have none, and of a broken archive or one with a password the part that can be read.
    """
    import lzma
    import tarfile
    import zipfile
    import zlib

    faults = (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error)
    faults += (OSError, EOFError, ValueError, RuntimeError)  # of a password: RuntimeError
    try:
        for magic, module in COMPRESSED.items():
            if data.startswith(magic):
                data = importlib.import_module(module).open(io.BytesIO(data)).read(LIMIT)
                yield from [("", data)] if data[257:262] != b"ustar" else []
        if data[257:262] == b"ustar":
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
                for member in archive:
                    yield member.name, archive.extractfile(member).read() if member.isfile() else b""
        elif data.startswith(b"PK\x03\x04"):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                yield from ((name, b"") for name in archive.namelist())  # a password hides the contents only
                left = LIMIT
                for name in archive.namelist():
                    content = archive.open(name).read(left)
                    left -= len(content)
                    yield name, content
    except faults:
        return
