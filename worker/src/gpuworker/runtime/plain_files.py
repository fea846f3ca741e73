"""Files of folders in which others write, too: a link, a pipe or a device there neither holds nor
misleads a program.

Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

PIECE_BYTES = 1 << 20


class NotPlainError(OSError):
    """What has the name is no regular file."""


def open_plain(
    path: Path, flags: int = os.O_RDONLY, mode: int = 0o666, follow: bool = False
) -> int:
    """A descriptor of a regular file, without waiting. `follow`: also of the target of a link.
    Raises OSError.
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW), mode)
    except OSError as error:
        # a link; a pipe or a socket without another end
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _not_plain(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_plain(path)
    return descriptor


def read_plain(path: Path, most: int, follow: bool = False) -> bytes:
    """The first `most` bytes of a regular file. Raises OSError."""
    descriptor = open_plain(path, follow=follow)
    try:
        pieces = []
        while most > 0 and (piece := os.read(descriptor, min(most, PIECE_BYTES))):
            pieces.append(piece)
            most -= len(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def replace_plain(path: Path, data: bytes, sync: bool = False) -> None:
    """Give a file new content, all of it or none; what has its name now is replaced and not
    opened. Raises OSError.
    """
    scratch = path.with_name(path.name + ".partial")
    with contextlib.suppress(FileNotFoundError):
        scratch.unlink()
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
        try:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
            scratch.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                scratch.unlink()
            raise


def _not_plain(path: Path) -> NotPlainError:
    return NotPlainError(errno.EINVAL, "not a regular file", str(path))
