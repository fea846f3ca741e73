"""State of one local rank: its last lines, how it ended, and where in the program it is."""

from __future__ import annotations

import os
import re
import signal
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from gpuworker.launch.failure_causes import BY_KEY, classify
from gpuworker.launch.protocol import RankFailure
from gpuworker.launch.root_cause import ENDED, WAITING
from gpuworker.runtime.contract import ExitCode
from gpuworker.runtime.processes import state

STACK = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
TAIL_LINES = 20


@dataclass
class RankState:
    """One rank, as its launcher sees it. `error`: the wrapper's report of an exception (`reason`, `location`)."""

    rank: int
    pid: int = 0
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    partial_line: bytes = b""
    folded_lines: int = 0  # kept in a file, not shown
    error: dict | None = None
    exit_code: int | None = None  # of a program that ended by itself
    exit_text: str = ""  # what it passed to sys.exit
    torchrun_exit_code: int | None = None  # as torchrun reports a rank that did neither
    gone_at: float = 0.0  # when its process was gone

    def failure(self, oom: bool) -> RankFailure:
        """The report for the coordinator. `oom`: the kernel killed a process of this container for memory."""
        code = self.torchrun_exit_code if self.exit_code is None else self.exit_code
        text = self.error["reason"] if self.error else "\n".join([self.exit_text, *self.tail])
        cause = classify(text) or BY_KEY["program-failed"]
        detail = self.exit_text or f"exit code {code}"
        if self.error:
            detail = f"{self.error['reason'].splitlines()[0][:400]} ({self.error['location']})"
        elif code == ExitCode.SAVED:
            cause, detail = BY_KEY["saved"], "ended with 75, which means saved"
        elif code is not None and code < 0:
            detail = f"ended by {signal.Signals(-code).name}"
            if code == -signal.SIGKILL:
                cause = BY_KEY["out-of-memory" if oom else "killed"]
            elif cause.key == "program-failed":
                cause = BY_KEY["killed"]
        if not self.error and self.tail:
            detail += f"; last line: {self.tail[-1][:200]}"
        return RankFailure(cause.key, self.rank, detail)

    @property
    def secondary(self) -> bool:
        """Whether its error only reports the failure of another rank."""
        cause = classify(self.error["reason"]) if self.error else None
        return bool(cause and cause.secondary)

    def location(self, stack: Path) -> str:
        """Where the rank is. `stack`: the file to which the rank has just written its stack, if it could."""
        if self.exit_code is not None:
            return ENDED if self.exit_code == 0 else f"has ended with {self.exit_code}"
        if self.error:
            cause = classify(self.error["reason"])
            waited = cause and cause.key == "collective-timeout"
            return f"{WAITING}{self.error['location']}" if waited else f"has failed at {self.error['location']}"
        if state(self.pid) in ("T", "t"):
            return "is stopped by a signal (SIGSTOP)"
        if state(self.pid) in ("", "Z"):
            return "is dead"
        frames = STACK.findall(stack.read_text()) if stack.exists() else []
        own = [f"{os.path.basename(file)}:{line} in {name}" for file, line, name in frames if not in_library(file)]
        if not own:
            return "did not report its stack"
        return f"{WAITING if '/torch/' in frames[0][0] else 'is at '}{own[0]}"


def in_library(file: str) -> bool:
    return any(part in file for part in ("site-packages", "dist-packages", "/torch/", "/rank_wrapper.py", "<frozen"))
