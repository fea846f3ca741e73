"""The ranks of this node: their start, their ends with the cause of each signal and exit code,
questions to them, and how they are stopped.

Only this file signals a rank. Before a SIGKILL it logs why, so that nobody takes it for the
kernel's.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from gpuworker.launch import environment, python_hook, stacks
from gpuworker.launch.config import STOP_SIGNALS, LaunchConfig
from gpuworker.launch.failure_causes import Failure
from gpuworker.launch.output import Output, RankOutput
from gpuworker.launch.protocol import STACKS_CHARS, NodeState, Orders, RankReport
from gpuworker.launch.rank import GOOD_CODES, Rank, start
from gpuworker.launch.rank_failure import (
    describe_errors,
    of_abort,
    of_exception,
    signal_of,
)
from gpuworker.runtime import machine, processes
from gpuworker.runtime.contract import ExitCode, Tag
from gpuworker.runtime.log import log

ANSWER_S = 3.0  # after a question; a rank that has not answered by then holds Python's lock
TERMINATE_S = 30  # from SIGTERM to SIGKILL after a failure, as torchrun
BUSY_S = 0.05  # of CPU time since the last look, a second ago, from which on a rank is at work
HOOKS_S = 30.0  # after which a rank that cannot answer is named
KILLED_S = 2.0  # from SIGKILL to the end of a process
# Of a process that a signal stopped, and of a shell whose program it stopped.
STOP_CODES = tuple(code for number in STOP_SIGNALS for code in (-number, 128 + number))


class LocalRanks:
    """All ranks of this node, from `start` to `close`."""

    def __init__(self, config: LaunchConfig, output: Output):
        self.config, self.output = config, output
        try:
            self.folder = Path(tempfile.mkdtemp(prefix=f"ddp-launch-{os.getpid()}-"))
        except OSError as error:
            raise Failure("node-unfit", f"no folder for temporary files: {error}") from None
        self.ranks: list[Rank] = []
        self.started_at = self.stop_deadline = 0.0
        self.cpu: list[float] = []  # seconds that each rank had used when they were measured
        self.progress_at = 0.0  # the last output or CPU time of any rank
        self.stepped = False

    # -- start and end

    def start(self, orders: Orders, address: str, interface: str) -> None:
        """Start all ranks. Raises OSError."""
        config, self.started_at = self.config, time.monotonic()
        self.progress_at = self.started_at
        self.oom_kills = processes.oom_kills()
        hook = self.folder / "hook"
        hook.mkdir(exist_ok=True)
        shutil.copyfile(python_hook.__file__, hook / "sitecustomize.py")
        addresses = [address, config.master_addr, str(config.master_port)]
        for local in range(config.nproc_per_node):
            box = self.folder / str(local)
            box.mkdir()
            variables = environment.of_rank(
                config, orders, local, address, interface, str(self.folder)
            )
            process, number = start(config.program, variables), int(variables["RANK"])
            output = RankOutput(self.output, process.stdout, process.stderr)
            self.ranks.append(Rank(number, box, process, output, addresses))

    async def end(self, reason: str) -> None:
        """End the ranks: SIGTERM, then SIGKILL after a time; in a stop, once its grace is over.

        A rank that handles an exception gets no signal: its traceback would be lost.
        """
        if not self.running():
            return
        reports = zip(self.ranks, await self.ask(), strict=True)
        self.terminate(rank for rank, each in reports if not rank.errors and not each.flying)
        grace_s = min(TERMINATE_S, self.config.grace_period)
        await self.wait_until(time.monotonic() + (0 if self.stop_deadline else grace_s))
        self.kill(self.ranks, reason)
        await self.wait_until(time.monotonic() + KILLED_S)

    async def wait_until(self, deadline: float) -> None:
        """Wait for the end of all ranks, in a stop for its whole grace period."""
        while self.running() and time.monotonic() < max(deadline, self.stop_deadline):
            await asyncio.sleep(0.02)
            self.look()

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- facts

    def look(self) -> None:
        """Read what has happened since the last look."""
        now = time.monotonic()
        for rank in self.ranks:
            if rank.look(now):  # judged once: a disk that is full now may have space later
                rank.failure = self.judge(rank)
            if not self.stepped and (rank.box / "stepped").exists():
                self.stepped = True
                seconds = now - self.started_at
                log(Tag.STEP, rank=rank.number, first_step="done", seconds=seconds)
            warns = now > self.started_at + HOOKS_S and not rank.warned
            if warns and rank.code is None and not rank.owner:
                rank.warned = True  # its program starts no Python that can answer
                why = "has no hook: no time-outs, places and steps of this rank"
                log(Tag.DDP, phase="hook", rank=rank.number, warning=why)

    def running(self) -> list[Rank]:
        """Ranks that can still end by themselves; a stopped one cannot."""
        return [rank for rank in self.ranks if rank.code is None and not rank.stopped]

    def final_state(self) -> NodeState | None:
        """The node's state once all ranks have ended without a failure, or in a stop; else None."""
        codes = {rank.code for rank in self.ranks}
        if None in codes or not self.ranks:
            return None
        if codes == {ExitCode.DONE} and not self.stop_deadline:
            return NodeState.DONE
        if codes <= set(GOOD_CODES):
            return NodeState.SAVED
        return NodeState.STOPPED if self.stop_deadline else None

    def progress_age(self) -> float:
        """Seconds since the last progress; to be asked once a second.

        0 while a rank has left its main program: that wait has a time-out of its own.
        """
        now, used = time.monotonic(), processes.cpu_seconds([rank.pid for rank in self.ranks])
        grown = [new - old for old, new in zip(self.cpu, used, strict=False)]
        ending = any(rank.left_at and rank.code is None for rank in self.ranks)
        times = [rank.output.activity_at for rank in self.ranks]
        times.append(now if ending or max(grown, default=0) > BUSY_S else self.progress_at)
        self.cpu, self.progress_at = used, max(times)
        return now - self.progress_at

    def failures(self) -> list[Failure]:
        """All failures of this node until now."""
        found, left_s = [], self.config.exit_timeout
        for rank in self.ranks:
            if rank.failed and not (self.stop_deadline and rank.failure.asked):
                found.append(rank.failure)
            elif rank.left_at and rank.code is None and time.monotonic() > rank.left_at + left_s:
                detail = f"it {rank.report().words}, for {left_s} s"
                found.append(Failure("exit-timeout", detail, rank=rank.number))
        return found

    def judge(self, rank: Rank) -> Failure:
        """How a rank has failed, from its exception, its wait status and facts of this node."""
        oom, program = processes.oom_kills() > self.oom_kills, self.config.program
        asked = rank.code in STOP_CODES or bool(self.stop_deadline and not rank.errors)
        number = signal_of(rank.code or 0, program)
        by_signal = f"ended by {stacks.signal_name(number)}" if number else ""
        if rank.errors:
            cause = of_exception(rank.errors, rank.addresses, machine.full_volumes(), oom)
            if cause == "port-in-use" and rank.number:
                cause = "program-failed"  # the store of the run is rank 0's
            detail = describe_errors(rank.errors, rank.answer.get("program", ""))
            detail += f", then {by_signal}" if number else ""
        else:
            cause, last = "killed" if number else "program-failed", rank.output.lines()
            if number == signal.SIGKILL and oom:
                cause = "out-of-memory"
            elif number == signal.SIGBUS and "/dev/shm" in machine.full_volumes():
                cause = "shared-memory-full"
            elif number == signal.SIGABRT:
                cause, line = of_abort(last)
                last = [line] if line else last
            detail = by_signal or f"exit code {rank.code}"
            detail += f"; last line: {last[-1][:300]}" if last else ""
        return Failure(cause, detail, rank=rank.number, asked=asked)

    async def ask(self, frames: bool = False) -> list[RankReport]:
        """Ask all ranks, and wait a moment for their answers."""
        end = time.monotonic() + ANSWER_S
        for rank in self.ranks:
            rank.ask()
        while not all([r.has_answered() for r in self.ranks]) and time.monotonic() < end:
            await asyncio.sleep(0.05)
            self.look()
        stack_chars = STACKS_CHARS // len(self.ranks) if frames and self.ranks else 0
        return [rank.report(stack_chars) for rank in self.ranks]

    # -- signals

    def terminate(self, ranks: Iterable[Rank]) -> None:
        for rank in ranks:
            if rank.code is None:
                processes.kill(processes.behind_shells(rank.pid, signal.SIGTERM), signal.SIGTERM)

    def kill(self, ranks: list[Rank], reason: str) -> None:
        """Send SIGKILL to those that still run, with their processes, and log why."""
        for rank in ranks:
            if rank.code is None:
                rank.killed = True
                log(Tag.DDP, phase="kill", rank=rank.number, reason=reason)
                processes.kill([-rank.pid], signal.SIGKILL)
