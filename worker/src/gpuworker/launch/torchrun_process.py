"""Supervision of the torchrun process: its start, its ranks' events, how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pkgutil
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

from gpuworker.launch import etcd, torchrun_args
from gpuworker.launch.config import STATE_FOLDER, LaunchConfig
from gpuworker.launch.failure_causes import classify
from gpuworker.launch.protocol import Go, NodeState, RankFailure
from gpuworker.launch.rank_output import fold_line, print_line, read_lines
from gpuworker.launch.rank_state import RankState
from gpuworker.runtime.contract import ExitCode, Tag
from gpuworker.runtime.log import log
from gpuworker.runtime.processes import children, descendants, kill, state

# What torchrun prints about the first of its ranks that failed.
FIRST_FAILURE = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
REPORT_TIMEOUT_S = 3.0  # how long torchrun may take to report that a rank has died
TERMINATE_TIMEOUT_S = 2.0  # how long processes may take to end on SIGTERM; a frozen one never ends


class TorchrunProcess:
    """torchrun on this node. Its process starts early, to import torch; `start` gives it something to run."""

    def __init__(self, config: LaunchConfig):
        self.config = config
        self.folder = Path(tempfile.mkdtemp(prefix="ddp-launch-"))
        first_rank = config.node_rank * config.nproc_per_node
        self.ranks = {local: RankState(first_rank + local) for local in range(config.nproc_per_node)}
        self.lines: deque[str] = deque(maxlen=60)  # torchrun's own
        self.partial_line = b""
        self.formed = self.stepped = False
        self.world_size = 0  # as the ranks see it
        self.first_failed: RankState | None = None
        self.pipes: dict[int, int] = {}
        self.output_folder: Path | None = None  # for what outlives the run
        self.oom_kills = oom_kills()
        for name in ("torchrun_preload.py", "rank_wrapper.py"):
            (self.folder / name).write_bytes(pkgutil.get_data("gpuworker.launch", name))
        modules = self.folder / "modules"
        if config.backend == "etcd":
            etcd.install_client(modules)
        self.process = subprocess.Popen(
            [sys.executable, self.folder / "torchrun_preload.py", self.folder],
            env=torchrun_args.preload_environment(config, str(modules)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def start(self, go: Go, master: str, interface: str) -> list[str]:
        """Let torchrun begin. Returns its arguments. `master`: node 0's address."""
        config = self.config
        self.started_at = time.monotonic()
        self.output_folder = self.folder
        if config.output_dir:
            self.output_folder = Path(config.output_dir) / STATE_FOLDER / go.rendezvous_id
        with contextlib.suppress(OSError):  # the disk is full, which the program will report
            self.output_folder.mkdir(parents=True, exist_ok=True)
        loop = asyncio.get_running_loop()
        self.events = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.events.bind(str(self.folder / "events"))
        loop.add_reader(self.events, self.read_events)
        for local in self.ranks:
            os.mkfifo(self.folder / f"output-{local}")
            # Opened for both directions, the pipe has no end of file, however many processes write to it.
            pipe = os.open(self.folder / f"output-{local}", os.O_RDWR | os.O_NONBLOCK)
            self.pipes[local] = pipe
            loop.add_reader(pipe, self.read_rank, local, pipe)
        os.set_blocking(self.process.stdout.fileno(), False)
        loop.add_reader(self.process.stdout, self.read_torchrun)
        arguments = torchrun_args.arguments(config, go.rendezvous_id, master, str(self.folder / "rank_wrapper.py"))
        flight = str(self.output_folder / "flight-")
        environ = torchrun_args.environment(config, go.attempt, interface, str(self.folder), flight)
        (self.folder / "order").write_text(json.dumps({"arguments": arguments, "environ": environ}))
        with contextlib.suppress(BrokenPipeError):  # it has ended, and its output shows why
            self.process.stdin.write(b"\n")
            self.process.stdin.close()
        return arguments

    # -- output and events

    def read_torchrun(self) -> None:
        """torchrun's own lines; also the program's, if it is not a Python program."""
        self.partial_line = read_lines(self.process.stdout.fileno(), self.partial_line, self.on_torchrun_line)

    def on_torchrun_line(self, text: str) -> None:
        self.lines.append(text)
        if self.config.debug or not self.config.python_program:
            sys.stdout.write(text + "\n")
        if found := FIRST_FAILURE.search(text):
            rank = self.ranks[int(found[2])]
            rank.torchrun_exit_code = int(found[1])
            self.on_failure(rank)

    def read_rank(self, local: int, pipe: int) -> None:
        self.read_events()  # a rank first reports that it fails, then prints why
        rank = self.ranks[local]
        rank.partial_line = read_lines(pipe, rank.partial_line, lambda text: self.on_rank_line(rank, text))

    def on_rank_line(self, rank: RankState, text: str) -> None:
        rank.tail.append(text)
        if rank.error and (rank is not self.first_failed or rank.secondary) and not self.config.debug:
            fold_line(rank, self.output_folder, text)
        else:
            print_line(text)

    def read_events(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := self.events.recv(65536):
                event = json.loads(data)
                rank = self.ranks[event["local"]]
                if event["event"] == "start":
                    self.on_rank_start(event["local"], event["pid"], event["rank"], event["world"])
                elif event["event"] == "error":
                    rank.error = event
                    self.on_failure(rank)
                elif event["event"] == "end":
                    rank.exit_code, rank.exit_text = event["code"], event["text"]
                    if rank.exit_code:
                        self.on_failure(rank)
                elif event["event"] == "step" and not self.stepped:
                    self.stepped = True
                    log(Tag.STEP, rank=rank.rank, first_step="done", seconds=time.monotonic() - self.started_at)
                elif event["event"] == "formed" and event["local"] == 0:
                    log(Tag.DDP, phase="process group", world=event["world"], seconds=event["seconds"])

    def on_rank_start(self, local: int, pid: int, number: int, world_size: int) -> None:
        """A rank exists, so torchrun's rendezvous is complete."""
        self.ranks[local].pid, self.ranks[local].rank, self.world_size = pid, number, world_size
        if not self.formed and all(rank.pid for rank in self.ranks.values()):
            self.formed = True
            ranks = ",".join(str(rank.rank) for rank in self.ranks.values())
            seconds = time.monotonic() - self.started_at
            log(Tag.DDP, phase="world formed", world=world_size, ranks=ranks, seconds=seconds)

    # -- the end

    def on_failure(self, rank: RankState) -> None:
        """Remember the first rank that failed; a rank with a root cause replaces a secondary one."""
        if self.first_failed is None or (self.first_failed.secondary and not rank.secondary):
            self.first_failed = rank

    def failure(self) -> RankFailure | None:
        """The failure of this node, once the lines that the rank printed before it have been read."""
        if self.formed and self.world_size != self.config.world_size:
            detail = f"torchrun formed a world of {self.world_size}, not of {self.config.world_size}"
            return RankFailure("world-not-formed", None, detail)
        if self.first_failed is None:
            return None
        for local, pipe in self.pipes.items():
            self.read_rank(local, pipe)
        return self.first_failed.failure(oom=oom_kills() > self.oom_kills)

    def torchrun_failure(self, code: int) -> RankFailure:
        """The failure of torchrun itself, before any rank failed: its output is the only evidence."""
        cause = classify("\n".join(self.lines))
        errors = [line for line in self.lines if re.search(r"Error|error:|Exception", line)]
        detail = f"torchrun ended with {code}: {errors[-1].strip()[:400] if errors else 'it printed no error'}"
        unknown = "program-failed" if self.formed else "world-not-formed"
        return RankFailure(cause.key if cause else unknown, None, detail, "run" if self.formed else "rendezvous")

    async def wait(self) -> int:
        """Wait until torchrun has ended. Returns its exit code."""
        while (code := self.process.poll()) is None:
            if not self.formed and not self.config.python_program:
                self.find_ranks()
            now = time.monotonic()
            for rank in self.ranks.values():
                if rank.pid and not rank.gone_at and state(rank.pid) in ("", "Z"):
                    rank.gone_at = now
            gone = [rank for rank in self.ranks.values() if rank.gone_at and rank.exit_code != 0]
            if any(now - rank.gone_at > REPORT_TIMEOUT_S for rank in gone):
                # torchrun waits half a minute for the other ranks before it reports.
                kill([rank.pid for rank in self.ranks.values() if not rank.gone_at and rank.pid], signal.SIGKILL)
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.05)
        self.read_torchrun()
        self.read_events()
        return code

    def find_ranks(self) -> None:
        """Ranks of a program that is not Python: torchrun's children, which it starts after its rendezvous."""
        for pid, environ in children(self.process.pid):
            local = environ.get("LOCAL_RANK", "")
            if local.isdecimal() and int(local) in self.ranks:
                self.on_rank_start(int(local), pid, int(environ["RANK"]), int(environ["WORLD_SIZE"]))

    async def collect_stacks(self) -> dict[str, str]:
        """Rank -> where in the program it is now."""
        for local, rank in self.ranks.items():
            with contextlib.suppress(OSError):
                (self.folder / f"stack-{local}").write_text("")
            # A program that rank_wrapper.py does not run has no handler, and the signal would end it.
            if rank.pid and rank.exit_code is None and not rank.error and self.config.python_program:
                kill([rank.pid], signal.SIGUSR2)
        await asyncio.sleep(0.3)
        return {str(rank.rank): rank.location(self.folder / f"stack-{local}") for local, rank in self.ranks.items()}

    def terminate_ranks(self) -> None:
        """Send SIGTERM to the program on all ranks. torchrun itself runs on and waits for them."""
        pids = [rank.pid for rank in self.ranks.values() if rank.pid]
        kill(pids or [self.process.pid], signal.SIGTERM)

    def kill_all(self) -> None:
        """Send SIGKILL: the grace period is over."""
        kill([self.process.pid, *descendants(self.process.pid)] if self.process.poll() is None else [], signal.SIGKILL)

    def state_after(self, code: int) -> NodeState:
        """The node's state after a stop, or after torchrun ended with 0."""
        if code == 0:
            return NodeState.DONE
        codes = {rank.exit_code for rank in self.ranks.values()}
        return NodeState.SAVED if codes <= {ExitCode.DONE, ExitCode.SAVED} else NodeState.STOPPED

    async def close(self) -> None:
        """End every process of the run."""
        pids = [self.process.pid, *descendants(self.process.pid)] if self.process.poll() is None else []
        kill(pids, signal.SIGTERM)
        end = time.monotonic() + TERMINATE_TIMEOUT_S
        while any(state(pid) not in ("", "Z", "T") for pid in pids) and time.monotonic() < end:
            self.process.poll()
            await asyncio.sleep(0.05)
        kill([pid for pid in pids if state(pid) not in ("", "Z")], signal.SIGKILL)
        if self.output_folder:
            self.read_torchrun()
        folded = [f"rank {rank.rank}: {rank.folded_lines} lines" for rank in self.ranks.values() if rank.folded_lines]
        if folded:
            kept = self.output_folder if self.config.output_dir else "DEBUG_DISTRIBUTED=1 shows them"
            log(Tag.DDP, folded=", ".join(folded), kept=kept)
        if self.output_folder and self.output_folder != self.folder:
            with contextlib.suppress(OSError):  # it is not empty, or another node on the same volume removed it
                self.output_folder.rmdir()
        shutil.rmtree(self.folder, ignore_errors=True)


def oom_kills() -> int:
    """How many processes of this container the kernel has killed for memory."""
    for file in ("memory.events", "memory/memory.oom_control"):  # of cgroup v2, of v1
        with contextlib.suppress(OSError):
            for line in Path("/sys/fs/cgroup", file).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0
