"""Attempts and idling in a StatefulSet, whose kubelet restarts containers without end.

The file `attempts` has one word per start of the container: its exit code, or the boot of its
machine while it runs. The readiness probe looks for the file `ready`.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from gpuworker.launch.config import STOP_SIGNALS
from gpuworker.runtime.contract import ExitCode, Tag
from gpuworker.runtime.log import log

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Not the program's fault.
NOT_COUNTED = [str(int(c)) for c in (ExitCode.SAVED, ExitCode.STOPPED, ExitCode.NODE_LOST)]


def begin(folder: Path, max_attempts: int) -> str:
    """Note a start. Returns how many there were before in this pod, as ATTEMPT. Raises OSError."""
    (folder / "ready").touch()
    file, boot = folder / "attempts", BOOT_ID.read_text().strip()
    known = file.read_text().split() if file.exists() else []
    if known and not known[-1].isdecimal():
        # The launcher was killed: with its container, which counts, or with its machine.
        finish(folder, max_attempts, ExitCode.FAILED if known[-1] == boot else ExitCode.NODE_LOST)
        known = file.read_text().split()
    file.write_text(" ".join([*known, boot]))
    return str(len(known))


def finish(folder: Path, max_attempts: int, code: int) -> None:
    """Note the exit code and return, for the kubelet to start the next attempt; or idle.

    It idles, too, if it cannot note it: else the container would start again without end.
    """
    reason = "the attempts cannot be counted"
    with contextlib.suppress(OSError):
        file = folder / "attempts"
        codes = [*file.read_text().split()[:-1], str(int(code))]
        file.write_text(" ".join(codes))
        failed = sum(each not in NOT_COUNTED for each in codes)
        if code != ExitCode.DONE and failed <= max_attempts:
            return
        reason = f"attempt {failed} of {max_attempts + 1} failed"
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    if code == ExitCode.DONE:
        reason = "the run is done"
    else:
        with contextlib.suppress(OSError):
            (folder / "ready").unlink(missing_ok=True)
    log(Tag.IDLE, exit_code=code, reason=f"{reason}; this pod idles until it is deleted")
    signal.sigwait(STOP_SIGNALS)
    os._exit(0)
