"""One rank of the program, as its launcher sees it: its last lines, how it ended, where it is."""

from __future__ import annotations

import os
import re
import signal
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from gpuworker.launch.failure_causes import BY_KEY, SAVED, explain
from gpuworker.launch.root_cause import ENDED, WAITS
from gpuworker.runtime.processes import state

STACK = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
TAIL = 20


@dataclass
class Rank:
    number: int
    pid: int = 0
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL))
    rest: bytes = b""  # of a line that is not yet whole
    folded: int = 0  # lines that were not shown
    error: dict | None = None  # the program raised
    end: int | None = None  # the program ended by itself, with this code
    why: str = ""  # and these words
    exit_code: int | None = None  # what torchrun says of a rank that did neither
    gone_at: float = 0.0

    def failure(self, oom: bool) -> dict:
        """What node 0 is told. `oom`: the kernel has killed a process of this container for memory."""
        code = self.exit_code if self.end is None else self.end
        text = self.error["why"] if self.error else "\n".join([self.why, *self.tail])
        cause = explain(text) or BY_KEY["failed"]
        what = self.why or f"exit code {code}"
        if self.error:
            what = f"{self.error['why'].splitlines()[0][:400]} ({self.error['place']})"
        elif code == SAVED:
            cause, what = BY_KEY["saved"], "ended with 75, which means saved"
        elif code is not None and code < 0:
            what = f"ended by {signal.Signals(-code).name}"
            if code == -signal.SIGKILL:
                cause = BY_KEY["out-of-memory" if oom else "killed"]
            elif cause.key == "failed":
                cause = BY_KEY["killed"]
        if not self.error and self.tail:
            what += f"; last line: {self.tail[-1][:200]}"
        return {"key": cause.key, "rank": self.number, "what": what}

    @property
    def echoes(self) -> bool:
        cause = explain(self.error["why"]) if self.error else None
        return bool(cause and cause.echo)

    def place(self, stack: Path) -> str:
        """Where the rank is, from the stack that it has just written, if it could."""
        if self.end is not None:
            return ENDED if self.end == 0 else f"has ended with {self.end}"
        if self.error:
            cause = explain(self.error["why"])
            waited = cause and cause.key == "collective"
            return f"{WAITS}{self.error['place']}" if waited else f"has failed at {self.error['place']}"
        if state(self.pid) in ("T", "t"):
            return "is stopped by a signal (SIGSTOP)"
        if state(self.pid) in ("", "Z"):
            return "is dead"
        frames = STACK.findall(stack.read_text()) if stack.exists() else []
        own = [f"{os.path.basename(file)}:{number} in {name}" for file, number, name in frames if not library(file)]
        if not own:
            return "tells nothing"
        return f"{WAITS if '/torch/' in frames[0][0] else 'is at '}{own[0]}"


def library(file: str) -> bool:
    return any(part in file for part in ("site-packages", "dist-packages", "/torch/", "/rank_wrapper.py", "<frozen"))
