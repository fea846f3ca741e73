"""State of one local rank: its process, how it ended, what it last printed, and where in the program it is.

The exit code is the kernel's, from rank_runner.py. What rank_wrapper.py reports explains it and never replaces it.
"""

from __future__ import annotations

import re
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from gpuworker.launch import stacks
from gpuworker.launch.config import STOP_SIGNALS
from gpuworker.launch.failure_causes import BY_KEY, Cause, of_exception, of_text
from gpuworker.launch.protocol import RankFailure
from gpuworker.runtime.contract import ExitCode
from gpuworker.runtime.processes import state

# Codes that end no other rank: the program is done, or has saved and wants to be started again.
GOOD_CODES = (ExitCode.DONE, ExitCode.SAVED)
# Of a process that a signal stopped, and of a shell whose program it stopped.
STOP_CODES = tuple(code for number in STOP_SIGNALS for code in (-number, 128 + number))
ENQUEUED = re.compile(r"\[PG (?:ID )?(\d+) .*last enqueued NCCL work: (-?\d+)")
# Which line of c10d or NCCL tells most, the first kind first.
TELLING = ("Watchdog caught collective", "terminated with exception", "got stuck")
NCCL_TELLING = (
    "NCCL WARN",
    "NCCL error",
)  # it warns about settings, too: only after a signal
ATTEMPT = re.compile("failed to connect|Call to connect returned|retry")  # is made again, so it ends nothing
BEFORE_STEP_S = 10.0  # what was printed so long before an optimizer step did not stop the program; GPUs lag behind it


@dataclass
class RankState:
    """One rank, as its launcher knows it. `code`: None while it runs, negative for a signal."""

    rank: int
    pid: int = 0
    wrapped: bool = False  # the rank wrapper can answer STACK_SIGNAL
    code: int | None = None
    ended_at: float = 0.0
    tail: list[str] = field(default_factory=list)  # its last lines
    evidence: dict[str, float] = field(default_factory=dict)  # lines of c10d and NCCL, and when each was printed last
    error: dict | None = None  # the rank wrapper's report of an exception
    error_at: float = 0.0
    ending: dict | None = None  # the program's main thread has ended: `text` of sys.exit, `threads` that go on
    ending_at: float = 0.0
    sequence: dict[str, int] = field(default_factory=dict)  # process group -> number of collectives started
    progress_at: float = 0.0  # last optimizer step; before the first one, last output
    steps: bool = False
    stepped_at: float = 0.0  # last optimizer step, by the rank's clock, which is this machine's
    killed: bool = False  # by the launcher

    @property
    def failed(self) -> bool:
        """Whether it ended, by itself, with another code than 0 and 75."""
        return self.code is not None and self.code not in GOOD_CODES and not self.killed

    def on_end(self, code: int, tail: list[str], evidence: dict[str, float]) -> None:
        self.code, self.ended_at, self.tail = code, time.monotonic(), tail
        for line, at in evidence.items():
            self.on_evidence(line, at)

    def on_evidence(self, line: str, at: float) -> None:
        """A line of c10d or NCCL, and when. NCCL's watchdog says how many collectives this rank has started."""
        if not ATTEMPT.search(line):
            self.evidence[line] = at
        if found := ENQUEUED.search(line):
            self.sequence[found[1] or "0"] = int(found[2])

    def cause(self, oom: bool) -> Cause:
        """By structure first: the signal, the exception's class; then text that c10d or NCCL wrote."""
        if self.code == -signal.SIGKILL:
            return BY_KEY["out-of-memory" if oom else "killed"]
        found = of_exception(self.error) if self.error else of_text("\n".join(self.recent_evidence()))
        chose_to_end = self.ending and (self.code or 0) > 0  # sys.exit: a lost connection did not end it
        if found and not (found.secondary and chose_to_end and not self.error):
            return found
        if self.code == -signal.SIGBUS:
            return BY_KEY["shared-memory-full"]
        if self.code == ExitCode.USAGE and not self.steps:  # argparse's code, too
            return BY_KEY["program-usage"]
        return BY_KEY["killed" if (self.code or 0) < 0 else "program-failed"]

    def recent_evidence(self) -> list[str]:
        return [line for line, at in self.evidence.items() if at >= self.stepped_at - BEFORE_STEP_S]

    def most_telling(self) -> str:
        """The line of c10d or NCCL that names the operation, the error or a cause; empty if there are only remarks.

        c10d warns about harmless things, too, such as addresses without a name.
        """
        lines, by_signal = self.recent_evidence(), (self.code or 0) < 0
        telling = [line for words in TELLING for line in lines if words in line]
        telling += filter(of_text, lines)
        telling += [line for words in NCCL_TELLING for line in lines if words in line and by_signal]
        return next(iter(telling), "")

    def failure(self, oom: bool) -> RankFailure:
        """The report for the coordinator. `oom`: the kernel killed a process of this container for memory."""
        if self.error:
            place = f" ({self.error['location']})" if self.error["location"] else ""
            detail = f"{self.error['reason'].splitlines()[0][:400]}{place}"
        elif self.code is not None and self.code < 0:
            detail = f"ended by {signal_name(-self.code)}"
        else:
            text = (self.ending or {}).get("text")
            detail = text or f"exit code {self.code}"
        if self.error and self.code is not None and self.code < 0:
            detail += f", then ended by {signal_name(-self.code)}"
        if not self.error:
            if line := self.most_telling():
                detail += f"; torch: {line[:300]}"
            elif last := next((line.strip() for line in reversed(self.tail) if line.strip()), ""):
                detail += f"; last line: {last[:300]}"
        return RankFailure(self.cause(oom).key, self.rank, detail, stopped=self.code in STOP_CODES)

    def location(self, stack: Path) -> str:
        """Where the rank is. `stack`: the file to which it has just written its stacks, if it could."""
        if self.code is not None:
            how = f"by {signal_name(-self.code)}" if self.code < 0 else f"with {self.code}"
            return f"has ended {how}"
        if self.error:
            waits = self.cause(False).key == "collective-timeout"
            return f"{'timed out' if waits else 'failed'} at {self.error['location'] or 'an unknown line'}"
        if state(self.pid) in ("T", "t"):
            return "is stopped by a signal (SIGSTOP)"
        if self.ending:
            threads = ", ".join(self.ending["threads"]) or "its exit handlers"
            return f"has left its main program, which waits for {threads}"
        found = stacks.parse(stack.read_text(errors="replace")) if stack.exists() else None
        return str(found) if found else "at an unknown place: no stack"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
