"""Attempts and idling in a StatefulSet, whose kubelet restarts containers without end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

from gpuworker.launch.config import STOP_SIGNALS
from gpuworker.runtime.contract import INTERNAL_PREFIX, ExitCode, Tag
from gpuworker.runtime.log import log

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NOT_COUNTED = (ExitCode.SAVED, ExitCode.STOPPED, ExitCode.NODE_LOST)  # not the program's fault


def begin(folder: Path, max_attempts: int) -> dict[str, str]:
    """Variables with the number of earlier attempts in this pod.

    The readiness probe looks for the file `ready`.
    """
    (folder / "ready").touch()
    running, boot = folder / "running", BOOT_ID.read_text()
    if running.exists():
        # The launcher was killed: with its container, which counts, or with its machine.
        same = running.read_text() == boot
        finish(folder, max_attempts, ExitCode.FAILED if same else ExitCode.NODE_LOST)
    failed, ignored = _count(folder / "attempt"), _count(folder / "ignored")
    running.write_text(boot)
    return {"ATTEMPT": str(failed), f"{INTERNAL_PREFIX}ATTEMPTS_IGNORED": str(ignored)}


def finish(folder: Path, max_attempts: int, code: int) -> None:
    """Count the attempt and return, for the kubelet to start the next one; or idle.

    It idles, too, if it cannot count: else the container would start again without end.
    """
    failed = max_attempts
    with contextlib.suppress(OSError):
        (folder / "running").unlink(missing_ok=True)
        failed = _count(folder / "attempt")
        counts = code not in NOT_COUNTED
        if code != ExitCode.DONE and not (counts and failed >= max_attempts):
            file = folder / ("attempt" if counts else "ignored")
            file.write_text(str(_count(file) + 1))
            return
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    if code != ExitCode.DONE:
        with contextlib.suppress(OSError):
            (folder / "ready").unlink(missing_ok=True)
    result = (
        "the run is done"
        if code == ExitCode.DONE
        else f"attempt {failed + 1} of {max_attempts + 1} failed"
    )
    log(Tag.IDLE, exit_code=code, reason=f"{result}; this pod idles until it is deleted")
    sys.stdout.flush()
    signal.sigwait(STOP_SIGNALS)
    os._exit(0)


def _count(file: Path) -> int:
    """The number in a file that may be absent, or empty after a power failure."""
    text = file.read_text() if file.exists() else ""
    return int(text) if text.isdecimal() else 0
