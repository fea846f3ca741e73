"""The ranks of this node: their start, their ends, what they answer, and signals to them.

The exit code comes from the kernel, and all else of a rank from files that its hook writes. Only
this file signals a rank. Before a SIGKILL it logs why, so that nobody takes it for the kernel's.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import ctypes
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gpuworker.launch import environment, rank_hook, stacks
from gpuworker.launch.config import STATE_FOLDER, STOP_SIGNALS, LaunchConfig
from gpuworker.launch.failure_causes import LOST, NO_MEMORY, TIMED_OUT, Failure, of_exception
from gpuworker.launch.output import Output, RankOutput
from gpuworker.launch.protocol import Go, NodeState, RankReport
from gpuworker.runtime import processes
from gpuworker.runtime.contract import ExitCode, Tag
from gpuworker.runtime.json_lines import LINE_LIMIT
from gpuworker.runtime.log import log

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)
ANSWER_S = 1.5  # after a question; a rank that has not answered by then holds Python's lock
STATVFS_S = 1.0  # for the free space of all volumes
DRAIN_S = 1.0  # for output that another process may still hold open
ERROR_S = 5.0  # after an exception, a rank that still runs its exit handlers has failed
TERMINATE_S = 30  # from SIGTERM to SIGKILL after a failure, as torchrun
STUCK_S = 0.5  # for a rank that waits for others and has nothing to save
GOOD_CODES = (ExitCode.DONE, ExitCode.SAVED)  # end no other rank
# Of a process that a signal stopped, and of a shell whose program it stopped.
STOP_CODES = tuple(code for number in STOP_SIGNALS for code in (-number, 128 + number))
# Lines of torch's and NCCL's own threads; an attempt that they make again ends nothing.
FROM_WATCHDOG = re.compile(r"ProcessGroup\w+\.cpp|TCPStore\.cpp|NCCL WARN|NCCL error|ncclRemoteError")
ATTEMPT = re.compile("failed to connect|Call to connect returned|retry")
# A thread of Gloo that releases a tensor during Python's finalization (torch 2.14, 2.15).
GLOO_ABORT = "terminate called without an active exception"
STACKS_BYTES = LINE_LIMIT // 3  # of all ranks of this node, in one message
BUSY_SHARE = 0.05  # of one CPU, from which on a rank is at work


@dataclass
class Rank:
    """One rank. `code`: None while it runs or its last output is read, negative for a signal."""

    number: int
    box: Path
    process: subprocess.Popen
    output: RankOutput
    code: int | None = None
    ended_at: float = 0.0
    errors: list[dict] = field(default_factory=list)  # rank_hook.describe
    error_at: float = 0.0
    answer: dict = field(default_factory=dict)
    answered: int = 0  # the question
    left_at: float = 0.0  # when its main program was first seen to have ended
    killed: bool = False  # by the launcher
    steps: int = 0
    busy_at: float = 0.0  # last CPU time that counts
    cpu: tuple[float, float] = (0.0, 0.0)  # seconds used, and when that was read
    answered_at: float = 0.0
    warned: bool = False
    judged: tuple | None = None  # what `judgement` rests on
    judgement: Failure | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def failed(self) -> bool:
        return self.code is not None and self.code not in GOOD_CODES and not self.killed

    def files(self, name: str) -> list[Path]:
        """The hook's files of that name: the rank's own, then those of other Pythons below it."""
        owner = read(self.box / "pid")
        found = self.box.glob(f"{name}.*")
        return sorted(found, key=lambda path: path.name != f"{name}.{owner}")


def read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace")
    return ""


def literal(path: Path) -> object:
    """The Python literal in a file that the hook wrote; None for anything else."""
    try:
        return ast.literal_eval(read(path))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def working_folder() -> Path:
    """A new folder for the ranks of this launch, in the first place that can be written."""
    errors = []
    places = (tempfile.gettempdir() if os.environ.get("TMPDIR") else "/tmp", "/tmp", "/dev/shm")
    for place in (*places, os.getcwd()):
        try:
            folder = Path(tempfile.mkdtemp(prefix="ddp-launch-", dir=place))
            (folder / "probe").write_bytes(bytes(65536))
            (folder / "probe").unlink()
            return folder
        except OSError as error:
            errors.append(f"{place}: {error.strerror}")
    reason = f"no folder for temporary files: {'; '.join(dict.fromkeys(errors))}"
    raise Failure("node-unfit", reason, "preflight")


class LocalRanks:
    """All ranks of this node, from `start` to `close`."""

    def __init__(self, config: LaunchConfig, output: Output):
        self.config, self.output = config, output
        self.folder = working_folder()
        self.ranks: list[Rank] = []
        self.go = Go()
        self.started_at = self.stop_deadline = 0.0
        self.stepped = False
        self.questions = 0
        self.oom_kills = processes.oom_kills()
        self.flight_folder = self.folder

    # -- start and end

    def start(self, go: Go, address: str, interface: str) -> None:
        """Start all ranks. Raises OSError."""
        config, self.go, self.started_at = self.config, go, time.monotonic()
        self.oom_kills = processes.oom_kills()
        hook = self.folder / "hook"
        hook.mkdir(exist_ok=True)
        shutil.copyfile(rank_hook.__file__, hook / "sitecustomize.py")
        if config.output_dir:
            name = f"{config.run_id}-{go.attempt}-{go.restarts}"
            self.flight_folder = Path(config.output_dir, STATE_FOLDER, name)
        with contextlib.suppress(OSError):  # the disk is full, which the program will report
            self.flight_folder.mkdir(parents=True, exist_ok=True)
        for local in range(config.nproc_per_node):
            box = self.folder / str(local)
            shutil.rmtree(box, ignore_errors=True)
            box.mkdir()
            flight = f"{self.flight_folder}/flight-"
            variables = environment.of_rank(config, go, local, address, interface, str(self.folder), flight)
            number = config.node_rank * config.nproc_per_node + local
            self.ranks.append(self._start(number, box, variables))

    def _start(self, number: int, box: Path, variables: dict[str, str]) -> Rank:
        parent = os.getpid()

        def end_with_launcher() -> None:
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

        process = subprocess.Popen(
            self.config.program,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # as torchrun: a group that can be ended as a whole
            preexec_fn=end_with_launcher,
        )
        pipes = {os.dup(process.stdout.fileno()): 1, os.dup(process.stderr.fileno()): 2}
        process.stdout.close()
        process.stderr.close()
        logs = self.flight_folder if self.config.rank_logs else None
        output = self.output.add(number, pipes, self.config.rank_prefix, logs)
        return Rank(number, box, process, output, busy_at=time.monotonic())

    async def end(self, reason: str, stopped: bool = False) -> None:
        """End the ranks: SIGTERM, then SIGKILL after a time. `stopped`: the grace period is over.

        A rank that handles an exception gets no signal: its traceback would be lost. One that waits
        for others, in a world that has ended, gets little time unless it still writes something.
        """
        running = self.running()
        if not running:
            return
        reports = {each.rank: each for each in await self.ask()}
        failing = [rank for rank in running if rank.errors or reports[rank.number].flying]
        self.terminate([rank for rank in running if rank not in failing])
        start = time.monotonic()
        grace_s = 0 if stopped else min(TERMINATE_S, self.config.timeouts["grace-period"])
        waiting = [
            rank for rank in running
            if rank not in failing and reports[rank.number].waits_in and not writes(rank)
        ]  # fmt: skip
        while self.running() and time.monotonic() < max(start + grace_s, self.stop_deadline):
            await asyncio.sleep(0.02)
            self.look()
            if waiting and not self.stop_deadline and time.monotonic() > start + STUCK_S:
                self.kill("it waits in a collective of a world that has ended", waiting)
                waiting = []
        self.kill(reason)
        end = time.monotonic() + 2
        while self.running() and time.monotonic() < end:
            await asyncio.sleep(0.02)
            self.look()

    def close(self) -> None:
        if self.flight_folder != self.folder:
            with contextlib.suppress(OSError):  # it is not empty, or another node removed it
                self.flight_folder.rmdir()
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- facts

    def look(self) -> None:
        """Read what has happened since the last look."""
        now = time.monotonic()
        for rank in self.ranks:
            if rank.code is None and (code := rank.process.poll()) is not None:
                rank.ended_at = rank.ended_at or now
                if not rank.output.open or now > rank.ended_at + DRAIN_S:
                    self.on_end(rank, code)
            for path in rank.files("error"):
                errors = literal(path)
                if isinstance(errors, list) and errors:  # at first without texts, which may block
                    rank.errors, rank.error_at = errors, rank.error_at or now
                    break
            if not self.stepped and (rank.box / "stepped").exists():
                self.stepped = True
                seconds = now - self.started_at
                log(Tag.STEP, rank=rank.number, first_step="done", seconds=seconds)

    def on_end(self, rank: Rank, code: int) -> None:
        rank.code = code
        last = rank.output.lines()[-1:]
        if code == -signal.SIGABRT and last == [GLOO_ABORT] and rank.files("end") and not rank.errors:
            log(Tag.DDP, phase="end", rank=rank.number, aborted="in Gloo's threads, after its end")
            rank.code = 0

    def running(self) -> list[Rank]:
        """Ranks that can still end by themselves; a stopped one cannot."""
        return [rank for rank in self.ranks
                if rank.code is None and processes.state(rank.pid) not in ("T", "t")]  # fmt: skip

    def final_state(self) -> NodeState | None:
        """The node's state once all ranks have ended without a failure, or in a stop; else None."""
        codes = {rank.code for rank in self.ranks}
        if None in codes or not self.ranks:
            return None
        if codes == {ExitCode.DONE}:
            return NodeState.SAVED if self.stop_deadline else NodeState.DONE
        if codes <= set(GOOD_CODES):
            return NodeState.SAVED
        return NodeState.STOPPED if self.stop_deadline else None

    def progress_age(self) -> float:
        """Seconds since the last step, output or CPU time of any rank.

        0 while a rank has left its main program: that wait has a time-out of its own.
        """
        running = [rank for rank in self.ranks if rank.code is None]
        if any(rank.left_at for rank in running):
            return 0.0
        now = time.monotonic()
        every = processes.cpu_seconds([rank.pid for rank in running])
        for rank, used in zip(running, every, strict=True):
            before, read_at = rank.cpu
            if used - before > BUSY_SHARE * (now - read_at):
                rank.busy_at = now
            rank.cpu = (used, now)
        last = [max(rank.busy_at, rank.output.activity_at) for rank in running]
        return now - max(last, default=now)

    def failures(self) -> list[Failure]:
        """All failures of this node, of the earliest first."""
        now, found = time.monotonic(), []
        for rank in self.ranks:
            left_s = self.config.timeouts["exit-timeout"]
            if rank.failed or (rank.code is None and rank.errors and self.counts(rank, now)):
                found.append((rank.error_at or rank.ended_at, self.failure(rank)))
            elif rank.left_at and rank.code is None and now > rank.left_at + left_s:
                words = stacks.describe(self.report(rank))
                detail = f"it {words}, for {left_s} s"
                found.append((now, Failure("exit-timeout", detail, rank=rank.number)))
        return [failure for _, failure in sorted(found, key=lambda pair: pair[0])]

    def counts(self, rank: Rank, now: float) -> bool:
        """Whether the exception of a rank that still runs is its failure already."""
        waits = self.failure(rank).cause == "collective-timeout"
        return waits or now > rank.error_at + ERROR_S

    def failure(self, rank: Rank) -> Failure:
        """How a rank has failed, from its exception, its wait status and facts of this node."""
        seen = (rank.code, rank.errors)
        if seen != rank.judged:  # once: a disk that is full now may have space later
            rank.judged, rank.judgement = seen, self.judge(rank)
        return rank.judgement

    def judge(self, rank: Rank) -> Failure:
        oom = processes.oom_kills() > self.oom_kills
        asked = rank.code in STOP_CODES or bool(self.stop_deadline and not rank.errors)
        number = signal_of(rank.code, self.config.program) if rank.code is not None else 0
        if rank.errors:
            cause = of_exception(rank.errors, self.addresses(), full_volumes(), oom)
            if cause == "port-in-use" and rank.number:
                cause = "program-failed"  # the store of the run is rank 0's
            detail = describe_errors(rank.errors, rank.answer.get("program", ""))
            if number:
                detail += f", then ended by {stacks.signal_name(number)}"
            return Failure(cause, detail, rank=rank.number, asked=asked)
        detail = f"ended by {stacks.signal_name(number)}" if number else f"exit code {rank.code}"
        cause = "killed" if number else "program-failed"
        last = rank.output.lines()
        if number == signal.SIGKILL and oom:
            cause = "out-of-memory"
        elif number == signal.SIGBUS and "/dev/shm" in full_volumes():
            cause = "shared-memory-full"
        elif number == signal.SIGABRT:
            cause, line = of_abort(rank.output.watchdog, last)
            last = [line] if line else last
        detail += f"; last line: {last[-1][:300]}" if last else ""
        return Failure(cause, detail, rank=rank.number, asked=asked)

    def addresses(self) -> list[str]:
        """What addresses of the run look like in the text of an error."""
        return [*self.go.addresses, self.config.master_addr, str(self.config.master_port)]

    # -- questions

    async def ask(self, frames: bool = False) -> list[RankReport]:
        """Ask all ranks, and wait a moment for their answers."""
        self.questions += 1
        number, end = self.questions, time.monotonic() + ANSWER_S
        for rank in self.ranks:
            if rank.code is None:
                for path in rank.files("answer"):
                    path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    (rank.box / "question").write_text(str(number))
        while time.monotonic() < end and any(self.unanswered(rank, number) for rank in self.ranks):
            await asyncio.sleep(0.05)
            self.look()
        return [self.report(rank, frames, number) for rank in self.ranks]

    def unanswered(self, rank: Rank, number: int) -> bool:
        """Whether a running rank, which can answer, has not yet. Reads the answer."""
        if rank.code is not None or rank.answered == number:
            return False
        answers = [each for path in rank.files("answer") if isinstance(each := literal(path), dict)]
        if answers:
            # Below a launcher of the image's, the rank is the process with the process groups.
            rank.answer = max(answers, key=lambda each: bool(each.get("groups")))
            rank.answered, rank.steps = number, max(rank.steps, rank.answer.get("steps", 0))
            if stacks.has_ended(rank.answer["threads"]) and rank.answer["owner"]:
                rank.left_at = rank.left_at or time.monotonic()
        return not answers and bool(read(rank.box / "pid"))

    def report(self, rank: Rank, frames: bool = False, number: int = 0) -> RankReport:
        made = RankReport(rank.number, code=rank.code)
        if rank.failed or (rank.errors and self.counts(rank, time.monotonic())):
            made.failure = self.failure(rank)
        if rank.errors:
            made.place = place_of(rank.errors, rank.answer.get("program", ""))
        answer = rank.answer
        made.groups, made.last = answer.get("groups", {}), answer.get("last", {})
        if rank.code is not None:
            made.state = "ended"
        elif processes.state(rank.pid) in ("T", "t"):
            made.state = "stopped"
        elif not answer or (number and rank.answered != number):
            made.inside = processes.waits_in(rank.pid)
            if rank.left_at:
                made.state, made.threads = "ending", waited_for(answer)
        else:
            self.fill(made, answer)
            made.frames = answer["threads"] if frames else []
            while len(repr(made.frames)) > STACKS_BYTES // len(self.ranks):
                made.frames = made.frames[:-1]
        return made

    def fill(self, made: RankReport, answer: dict) -> None:
        """The part of a report that comes from the rank's answer."""
        thread = stacks.working_thread(answer["threads"])
        found = stacks.locate(thread["stack"], answer["program"])
        made.state = "importing" if found.importing else "running"
        if stacks.has_ended(answer["threads"]) and answer["owner"]:
            made.state, made.threads = "ending", waited_for(answer)
        made.place = made.place or found.place
        made.waits_in, made.inside = found.waits_in, found.inside
        if errors := thread["error"]:
            cause = of_exception(errors, self.addresses(), [], False)
            made.flying = Failure(cause, describe_errors(errors, answer["program"]), rank=made.rank)

    # -- signals

    def terminate(self, ranks: Iterable[Rank]) -> None:
        for rank in ranks:
            if rank.code is None:
                processes.kill(processes.behind_shells(rank.pid, signal.SIGTERM), signal.SIGTERM)

    def kill(self, reason: str, ranks: list[Rank] | None = None) -> None:
        """Send SIGKILL to what still runs, or to these ranks only, and log why."""
        killed = [rank for rank in (self.ranks if ranks is None else ranks) if rank.code is None]
        if killed:
            numbers = ",".join(str(rank.number) for rank in killed)
            log(Tag.DDP, phase="kill", ranks=numbers, reason=reason)
        for rank in killed:
            rank.killed = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(rank.pid, signal.SIGKILL)

    def warn_of_missing_hooks(self) -> None:
        """Log, once, each rank that will not answer: its program starts no Python that can."""
        for rank in self.ranks:
            if rank.code is None and not rank.warned and not read(rank.box / "pid"):
                rank.warned = True
                why = "has no hook: no time-outs, places and steps of this rank"
                log(Tag.DDP, phase="hook", rank=rank.number, warning=why)


def waited_for(answer: dict) -> list[str]:
    """Threads for which Python waits at the end of the main program, with their places."""
    return [
        f"{each['name']} at {stacks.locate(each['stack'], answer['program']).place}"
        for each in answer.get("threads", [])
        if not each["daemon"] and not each["main"]
    ][:5]


def writes(rank: Rank) -> bool:
    """Whether a rank may be writing: another non-daemon thread, a child, a file open for it."""
    if waited_for(rank.answer) or processes.child_pids(rank.pid):
        return True
    for descriptor in Path(f"/proc/{rank.pid}/fd").glob("*"):
        with contextlib.suppress(OSError, ValueError):
            target = os.readlink(descriptor)
            if target.startswith(("/dev/", "/memfd:")) or target.endswith(" (deleted)"):
                continue
            if not stat.S_ISREG(os.stat(descriptor).st_mode):
                continue
            info = read(Path(f"/proc/{rank.pid}/fdinfo", descriptor.name))
            flags = int(info.partition("flags:")[2].split()[0], 8)
            if flags & (os.O_WRONLY | os.O_RDWR):
                return True
    return False


def signal_of(code: int, program: tuple[str, ...]) -> int:
    """The signal that ended a rank, also through a shell, which adds 128 to it; else 0."""
    if code < 0:
        return -code
    shell = os.path.basename(program[0]) in processes.SHELLS or program[0].endswith(".sh")
    return code - 128 if shell and code - 128 in list(signal.Signals) else 0


def of_abort(watchdog: str, lines: list[str]) -> tuple[str, str]:
    """Cause of a SIGABRT, and the line that tells it: torch's watchdogs end the process so."""
    if watchdog:
        return "collective-timeout", watchdog
    found = ("killed", "")
    for line in filter(FROM_WATCHDOG.search, lines):
        if "watchdog got stuck" in line or ("exception" in line and TIMED_OUT.search(line)):
            return "collective-timeout", line
        if NO_MEMORY.search(line):
            return "gpu-out-of-memory", line
        if "terminated with exception" in line:
            return "killed", line
        if LOST.search(line) and not ATTEMPT.search(line):
            found = ("peer-lost", line)
    return found


def describe_errors(errors: list[dict], program: str) -> str:
    """`Type: first line … last line (place)`, and the exceptions behind it."""
    parts = []
    for error in errors[:4]:
        first, last = error["first"], error["last"]
        text = first if first == last else f"{first} … {last}"
        name = error["kinds"][0].rpartition(".")[2] or "exception"
        how = f"{error['how']} " if error["how"] else ""
        parts.append(f"{how}{name}{': ' if text else ''}{text}"[:600])
    place = place_of(errors, program)
    return parts[0] + (f" ({place})" if place else "") + "".join(f", {part}" for part in parts[1:])


def place_of(errors: list[dict], program: str) -> str:
    frames = errors[0]["frames"]
    return stacks.format_frame(frames[stacks.own_frame(frames, program)]) if frames else ""


def full_volumes() -> list[str]:
    """Volumes that can be written and have no space left; asked in a thread, as NFS may not answer."""
    found: list[str] = []

    def look() -> None:
        for line in read(Path("/proc/self/mounts")).splitlines():
            _, place, _, options, *_ = line.split()
            with contextlib.suppress(OSError):
                space = os.statvfs(place)
                free = space.f_bavail * space.f_frsize
                little = free < 1 << 20 and space.f_bavail * 100 < space.f_blocks
                if options.split(",")[0] == "rw" and little and place not in found:
                    found.append(place)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(STATVFS_S)
    return list(found)
