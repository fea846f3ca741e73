"""Processes as /proc shows them: states, children, signals, and adoption of orphans."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterable
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of processes whose parent ended (an uploader of metrics), as process 1
    would.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap(but: Iterable[int] = ()) -> None:
    """Reap children that have ended, except those for which their owner waits."""
    kept = set(but)
    for pid in child_pids(os.getpid()):
        if pid not in kept:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


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
            found[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
    return found


SHELLS = ("sh", "bash", "dash", "ash", "zsh", "ksh", "busybox")


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal. A program that replaced another one (exec)
    has none.
    """
    with contextlib.suppress(OSError, ValueError):  # it has ended
        status = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        )
        return bool(int(status["SigCgt"], 16) >> (number - 1) & 1)
    return False


def behind_shells(pid: int, number: signal.Signals) -> list[int]:
    """The processes that should get a signal: instead of a shell that has no trap for it, what the
    shell waits for.

    A shell without a trap ends at once and passes no signal on, so its program would run on,
    unsaved. What only reads the output of a program that has a handler (`train | tee log`) gets
    none: its end would break the program's pipe.
    """
    found = _leaves(pid, number)
    writers = [leaf for leaf in found if catches(leaf, number)]
    readers: set[int] = set()
    for writer in writers:  # grows while it is read: a reader may write to the next one
        outputs = {_file(writer, 1), _file(writer, 2)}
        new = [leaf for leaf in found if leaf not in writers and _file(leaf, 0).startswith("pipe:")]
        new = [leaf for leaf in new if _file(leaf, 0) in outputs]
        writers += new
        readers |= set(new)
    return [leaf for leaf in found if leaf not in readers]


def _leaves(pid: int, number: signal.Signals) -> list[int]:
    with contextlib.suppress(OSError):  # it has ended
        # The program and not the process's name, which for a script is that of the script.
        program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
        if program in SHELLS and not catches(pid, number) and (started := child_pids(pid)):
            return [leaf for child in started for leaf in _leaves(child, number)]
    return [pid]


def _file(pid: int, descriptor: int) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/{descriptor}")
    return ""


def descendants(pid: int) -> list[int]:
    found, parent_of = [pid], parents()
    for known in found:  # grows while it is read
        found += [child for child, parent in parent_of.items() if parent == known]
    return found[1:]


def kill(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def oom_kills() -> int:
    """How many processes of this container the kernel has killed for memory."""
    for file in ("memory.events", "memory/memory.oom_control"):  # of cgroup v2, of v1
        with contextlib.suppress(OSError):
            for line in Path("/sys/fs/cgroup", file).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def cpu_seconds(pids: list[int]) -> list[float]:
    """CPU time of each of these processes with all below it, those that have ended included."""
    used, parent_of = dict.fromkeys(pids, 0.0), parents()
    for pid in parent_of:
        above = pid
        while above in parent_of and above not in used:
            above = parent_of[above]
        if above in used:
            with contextlib.suppress(OSError, ValueError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                used[above] += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return list(used.values())


def waits_in(pid: int) -> str:
    """Where in the kernel a process is, such as `D in nfs_wait_client`, as far as that can be
    read.
    """
    letter = state(pid)
    with contextlib.suppress(OSError):
        if (place := Path(f"/proc/{pid}/wchan").read_text().strip()) not in ("", "0"):
            return f"{letter} in {place}"
    return f"state {letter}" if letter else ""
