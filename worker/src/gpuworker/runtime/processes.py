"""Processes as /proc shows them: states, children, signals, and adoption of orphans."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of processes whose parent ended (an uploader of metrics), as process 1 would."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap(except_pid: int) -> None:
    """Reap children that have ended, except the one that its owner waits for."""
    look = os.WEXITED | os.WNOHANG | os.WNOWAIT
    with contextlib.suppress(ChildProcessError):  # no children
        while (ended := os.waitid(os.P_ALL, 0, look)) and ended.si_pid != except_pid:
            os.waitpid(ended.si_pid, 0)


def state(pid: int) -> str:
    """One letter, as `ps` shows it; empty if there is no such process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def child_pids(pid: int) -> list[int]:
    return [child for child, parent in parents().items() if parent == pid]


def parents() -> dict[int, int]:
    """Every process -> its parent."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            found[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def children(pid: int) -> list[tuple[int, dict[str, str]]]:
    """Child -> its environment."""
    found = []
    for child in child_pids(pid):
        with contextlib.suppress(OSError):
            pairs = Path(f"/proc/{child}/environ").read_bytes().decode(errors="replace").split("\0")
            found.append((child, dict(pair.split("=", 1) for pair in pairs if "=" in pair)))
    return found


def descendants(pid: int) -> list[int]:
    found, parent_of = [pid], parents()
    for known in found:  # grows while it is read
        found += [child for child, parent in parent_of.items() if parent == known]
    return found[1:]


def kill(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
