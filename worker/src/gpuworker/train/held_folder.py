"""Temporary folder whose owner holds a lock, so that another process knows whether the owner still lives.

The operating system releases the lock when the owner ends, however it ends. On a volume of several nodes a lock may be
known to its own node only, or to its own mount. A folder from elsewhere is therefore taken for abandoned only after an
hour without writes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuworker.train.preemption import removed_on_exit

HELD = (errno.EAGAIN, errno.EACCES)  # by another process
LOCK = "owner"
ABANDONED_S = 3600


def place_of(folder: Path) -> str:
    """Name of the running kernel and of the mounted volume: here a lock says for sure whether its owner lives.

    The volume counts because a file system in user space may be mounted by each pod of a node.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {folder.stat().st_dev}"


@contextlib.contextmanager
def held_folder(folder: Path) -> Iterator[Path]:
    """A new folder, removed at the end of the block, also if a signal ends the process in it."""
    folder.mkdir()
    removed_on_exit.add(folder)
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with contextlib.suppress(OSError):  # a volume without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, place_of(folder).encode())
        yield folder
    finally:
        os.close(descriptor)  # NFS keeps a folder with an open file
        shutil.rmtree(folder, ignore_errors=True)
        removed_on_exit.discard(folder)


def remove_abandoned(folders: Iterable[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):  # another process removes it, or it belongs to another user
            if is_abandoned(folder):
                shutil.rmtree(folder)


def is_abandoned(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR)
    except FileNotFoundError:
        return is_old(folder)  # its owner has not made it yet
    try:
        here = os.read(descriptor, 99).decode() == place_of(folder)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in HELD and is_old(folder)
        return here or is_old(folder)
    finally:
        os.close(descriptor)


def is_old(folder: Path) -> bool:
    newest = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
    return time.time() - newest > ABANDONED_S
