"""One rank: its process, what its hook has written about it, and its report.

The exit code comes from the kernel, and all else from files of the hook.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from gpuworker.launch import stacks
from gpuworker.launch.failure_causes import Failure
from gpuworker.launch.output import RankOutput
from gpuworker.launch.protocol import RankReport, first
from gpuworker.launch.rank_failure import describe_errors, of_exception
from gpuworker.runtime import processes
from gpuworker.runtime.contract import ExitCode, Tag
from gpuworker.runtime.log import log

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)
DRAIN_S = 1.0  # for output that another process may still hold open
ERROR_S = 5.0  # after an exception, a rank that still runs its exit handlers has failed
GOOD_CODES = (ExitCode.DONE, ExitCode.SAVED)  # end no other rank
# A thread of Gloo that releases a tensor during Python's finalization (torch 2.14, 2.15).
GLOO_ABORT = "terminate called without an active exception"


def literal(path: Path) -> object:
    """The Python literal in a file that the hook wrote; None for anything else."""
    try:
        return ast.literal_eval(path.read_text(errors="replace"))
    except (OSError, ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def start(program: tuple[str, ...], variables: dict[str, str]) -> subprocess.Popen:
    """Start a rank's process, which ends with this one. Raises OSError."""
    parent = os.getpid()

    def end_with_launcher() -> None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return subprocess.Popen(
        program,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,  # as torchrun: a group that can be ended as a whole
        preexec_fn=end_with_launcher,
    )


@dataclass
class Rank:
    """One rank. `code`: None while it runs or its last output is read, negative for a signal."""

    number: int
    box: Path
    process: subprocess.Popen
    output: RankOutput
    addresses: list[str]  # what addresses of the run look like in the text of an error
    code: int | None = None
    ended_at: float = 0.0
    errors: list[dict] = field(default_factory=list)  # python_hook.describe
    error_at: float = 0.0
    failure: Failure | None = None  # what `code` and `errors` mean, if they mean a failure
    answer: dict = field(default_factory=dict)
    asked: int = 0  # when, by the clock of its folder
    left_at: float = 0.0  # when its main program was first seen to have ended
    killed: bool = False  # by the launcher
    warned: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stopped(self) -> bool:
        return processes.state(self.pid) in ("T", "t")

    @property
    def owner(self) -> int | None:
        """The process whose hook is the rank's."""
        return literal(self.box / "pid")

    @property
    def failed(self) -> bool:
        """Whether it ended as a failure, or its main program did and it will not end in time."""
        if self.code is not None:
            return self.code not in GOOD_CODES and not self.killed
        waits = self.failure is not None and self.failure.cause == "collective-timeout"
        return bool(self.errors) and (waits or time.monotonic() > self.error_at + ERROR_S)

    def written(self, name: str) -> list:
        """What hooks wrote in files of that name: the rank's own, then other Pythons' below it."""
        own = f"{name}.{self.owner}"
        files = sorted(self.box.glob(f"{name}.*"), key=lambda path: path.name != own)
        return list(filter(None, map(literal, files)))

    def look(self, now: float) -> bool:
        """Read how it has ended. Returns whether that is new."""
        if self.code is not None:
            return False
        # A helper may fail, or the program of a shell, and the program may handle that.
        before, owner = self.errors, self.owner
        lives = owner and processes.state(owner) not in ("", "Z", "X")
        found = literal(self.box / f"error.{owner}") if lives else None
        self.errors = found or []  # at first without texts
        self.error_at = (self.error_at or now) if self.errors else 0.0
        if (code := self.process.poll()) is not None:
            self.ended_at = self.ended_at or now
            if not self.output.open or now > self.ended_at + DRAIN_S:
                self.code = code
                self.errors = next(iter(self.written("error")), [])
                ended = code == -signal.SIGABRT and self.written("end") and not self.errors
                if ended and self.output.lines()[-1:] == [GLOO_ABORT]:
                    aborted = "in Gloo's threads, after its end"
                    log(Tag.DDP, phase="end", rank=self.number, aborted=aborted)
                    self.code = 0
        return self.code is not None or before != self.errors

    # -- questions

    def ask(self) -> None:
        with contextlib.suppress(OSError):
            (self.box / "question").touch()
            self.asked = (self.box / "question").stat().st_mtime_ns

    @property
    def answered(self) -> bool:
        return self.answer.get("asked") == self.asked

    def has_answered(self) -> bool:
        """Read the answer. True also for a rank that cannot answer, or has told why it ends."""
        if not self.answered and (found := self.written("answer")):
            fresh = [each for each in found if each["asked"] == self.asked]
            # Below a launcher of the image's, the rank is the process with the process groups.
            self.answer = max(fresh or found, key=lambda each: bool(each["groups"]))
            if stacks.has_ended(self.answer["threads"]) and self.answer["owner"]:
                self.left_at = self.left_at or time.monotonic()
        return self.answered or self.code is not None or not self.owner or bool(self.errors)

    def report(self, stack_chars: int = 0) -> RankReport:
        """What is known. `stack_chars`: of whole stacks, at most."""
        answer, program = self.answer, self.answer.get("program", "")
        counts = {name: answer[name] for name in ("groups", "last", "steps") if answer}
        made = RankReport(self.number, code=self.code, failed=self.failed, **counts)
        flying = None
        if self.code is None and not self.stopped and self.answered:
            thread = stacks.working_thread(answer["threads"])
            made.words, made.waits, made.importing = stacks.locate(thread["stack"], program)
            made.stack = stacks.text_of(answer["threads"])[:stack_chars]
            flying = thread["error"]
        if self.failed and self.errors:
            made.waits = self.failure.cause == "collective-timeout"
            how = "timed out" if made.waits else "failed"
            made.words = f"{how} at {stacks.place(self.errors[0]['frames'], program)}"
            if self.errors[1:]:
                made.words += f", after {describe_errors(self.errors[-1:], program)}"
        elif self.code is not None:
            made.words = f"has ended {stacks.ended(self.code)}"
        elif self.stopped:
            made.words = "is stopped by a signal (SIGSTOP)"
        elif self.left_at:
            waits_for = [
                f"{t['name']} at {stacks.place(t['stack'], program)}" for t in self.threads
            ]
            words = first(waits_for) or "its exit handlers"
            made.words = f"has left its main program, which waits for {words}"
        elif not self.answered:
            made.words = f"does not answer ({processes.waits_in(self.pid)})"
        if flying:
            cause = of_exception(flying, self.addresses, [], False)
            made.flying = Failure(cause, describe_errors(flying, program), rank=self.number)
            made.words += f", and handles {made.flying.reason}"
        return made

    @property
    def threads(self) -> list[dict]:
        """Threads for which Python waits at the end of the main program."""
        threads = self.answer.get("threads", [])
        return [each for each in threads if not each["daemon"] and not each["main"]]
