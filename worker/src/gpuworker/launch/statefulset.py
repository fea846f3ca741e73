"""A StatefulSet starts its containers again for ever: so there the launcher counts attempts and stays at the end."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from gpuworker.launch.failure_causes import DONE, SAVED, STOPPED
from gpuworker.runtime.log import log

ENDS = (signal.SIGTERM, signal.SIGINT)


def begin(folder: Path) -> str:
    """How many attempts this pod has seen before this one. The file `ready` is what the readiness probe looks for."""
    (folder / "ready").touch()
    count = folder / "attempt"
    return count.read_text() if count.exists() else "0"


def park(folder: Path, attempts: int, code: int) -> None:
    """Count the attempt and return, for the kubelet to start the next; or wait, asleep, until the pod is deleted."""
    if code in (SAVED, STOPPED):
        return  # not the program's fault, so not counted
    done = int(begin(folder))
    if code != DONE and done < attempts:
        (folder / "attempt").write_text(str(done + 1))
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    if code != DONE:
        (folder / "ready").unlink()
    words = "the run is done" if code == DONE else f"all {attempts + 1} attempts have failed"
    log("PARKED", exit_code=code, why=f"{words}; this pod sleeps until it is deleted")
    sys.stdout.flush()
    signal.sigwait(ENDS)
    os._exit(0)
