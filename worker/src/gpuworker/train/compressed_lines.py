"""Lines of files that are compressed with gzip or zstd."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path


def zstd():
    """The module of Python 3.14, or the same for older ones."""
    try:
        from compression import zstd
    except ImportError:
        from backports import zstd
    return zstd


def read_lines(path: Path) -> Iterator[bytes]:
    """Lines of all frames of the file. Raises ValueError if it is not whole."""
    if path.suffix == ".gz":
        kind, open_file, errors = "gzip", gzip.open, (EOFError, OSError, zlib.error)
    else:
        kind, open_file, errors = "zstd", zstd().open, (EOFError, zstd().ZstdError)
    with open_file(path) as file:
        while True:
            try:
                text = file.readline()
            except errors as error:
                if isinstance(error, OSError) and error.errno:
                    raise
                raise ValueError(f"not a whole {kind} file: {error}") from None
            if not text:
                return
            yield text
