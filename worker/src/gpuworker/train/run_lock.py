"""Lock of a run's folder: one training writes to it at a time.

When a run's values change, Kubernetes starts the new object's pods before it ends the old ones. Without the lock, the
new training would resume from a checkpoint that the old one is about to replace. The operating system releases the
lock when its process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log

WAIT_S = 300.0  # longer than the time in which a stopped training saves
POLL_S = 0.2


class RunLockedError(ValueError):
    """Another training still writes to the run's folder."""


@contextlib.contextmanager
def run_lock(folder: Path, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the lock of a run's folder, once the training that holds it has ended."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Next to the folder, because `--resume never` renames the folder.
    descriptor = os.open(folder.with_name(f".{folder.name}.lock"), os.O_RDWR | os.O_CREAT, 0o666)
    end, waiting = time.monotonic() + wait_s, False
    try:
        while not try_lock(descriptor):
            if not waiting:
                waiting = True
                log(Tag.TRAIN, rank=0, waiting_for=f"another training that writes to {folder}", seconds=wait_s)
            if time.monotonic() > end:
                raise RunLockedError(
                    f"{folder}: another training still writes to this run; end it, or choose another name of the run "
                    "(runName of the chart, --run)"
                )
            time.sleep(POLL_S)
        yield
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Lock an open file. True also where the volume has no locks, such as an object store."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True
