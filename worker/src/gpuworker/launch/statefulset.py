"""Attempts and idling in a StatefulSet, whose kubelet restarts containers without end."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from gpuworker.launch.config import STOP_SIGNALS
from gpuworker.runtime.contract import ExitCode, Tag
from gpuworker.runtime.log import log


def begin(folder: Path) -> str:
    """The number of earlier attempts in this pod. The readiness probe looks for the file `ready`."""
    (folder / "ready").touch()
    count = folder / "attempt"
    return count.read_text() if count.exists() else "0"


def finish(folder: Path, max_attempts: int, code: int) -> None:
    """Count the attempt and return, so that the kubelet starts the next one; or idle until the pod is deleted."""
    if code in (ExitCode.SAVED, ExitCode.STOPPED):
        return  # not the program's fault, so not counted
    attempts = int(begin(folder))
    if code != ExitCode.DONE and attempts < max_attempts:
        (folder / "attempt").write_text(str(attempts + 1))
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    if code != ExitCode.DONE:
        (folder / "ready").unlink()
    result = "the run is done" if code == ExitCode.DONE else f"attempt {attempts + 1} of {max_attempts + 1} failed"
    log(Tag.IDLE, exit_code=code, reason=f"{result}; this pod idles until it is deleted")
    sys.stdout.flush()
    signal.sigwait(STOP_SIGNALS)
    os._exit(0)
