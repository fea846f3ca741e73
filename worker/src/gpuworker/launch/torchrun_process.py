"""torchrun as a child: its output, its ranks, how they end, and where they are."""

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
from gpuworker.launch.config import Plan
from gpuworker.launch.failure_causes import explain
from gpuworker.launch.rank_state import Rank
from gpuworker.runtime.log import log
from gpuworker.runtime.processes import children, descendants, kill, state

# What torchrun says about the first of its ranks that failed.
FIRST = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
GIVE_UP_S = 3.0  # how long torchrun may take to say that a rank has died
QUIT_S = 2.0  # how long processes may take to end on SIGTERM; one that is frozen never will


class Child:
    """Made early, started once the nodes have met."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.folder = Path(tempfile.mkdtemp(prefix="ddp-launch-"))
        self.ranks = {local: Rank(plan.node * plan.processes + local) for local in range(plan.processes)}
        self.agent: deque[str] = deque(maxlen=60)
        self.agent_rest = b""
        self.formed = self.stepped = False
        self.seen_world = 0
        self.first: Rank | None = None  # to fail
        self.pipes: dict[int, int] = {}
        self.kept: Path | None = None  # folder for what outlives the run
        self.oom_kills = oom_kills()
        for name in ("torchrun_preload.py", "rank_wrapper.py"):
            (self.folder / name).write_bytes(pkgutil.get_data("gpuworker.launch", name))
        modules = self.folder / "modules"
        if plan.backend == "etcd":
            etcd.bring_client(modules)
        self.process = subprocess.Popen(
            [sys.executable, self.folder / "torchrun_preload.py", self.folder],
            env=torchrun_args.early(plan, str(modules)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def start(self, go: dict, master: str, interface: str) -> list[str]:
        """Let torchrun begin; its arguments."""
        self.started = time.monotonic()
        self.kept = Path(self.plan.out) / ".ddp-launch" / go["id"] if self.plan.out else self.folder
        with contextlib.suppress(OSError):  # a full disk is the program's to report
            self.kept.mkdir(parents=True, exist_ok=True)
        loop = asyncio.get_running_loop()
        self.events = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.events.bind(str(self.folder / "events"))
        loop.add_reader(self.events, self.read_events)
        for local in self.ranks:
            os.mkfifo(self.folder / f"output-{local}")
            # Open both ways: it never ends, however many processes come and go.
            pipe = os.open(self.folder / f"output-{local}", os.O_RDWR | os.O_NONBLOCK)
            self.pipes[local] = pipe
            loop.add_reader(pipe, self.read_rank, local, pipe)
        os.set_blocking(self.process.stdout.fileno(), False)
        loop.add_reader(self.process.stdout, self.read_agent)
        arguments = torchrun_args.arguments(self.plan, go["id"], master, str(self.folder / "rank_wrapper.py"))
        environ = torchrun_args.environment(self.plan, go, interface, str(self.folder), str(self.kept / "flight-"))
        (self.folder / "order").write_text(json.dumps({"arguments": arguments, "environ": environ}))
        with contextlib.suppress(BrokenPipeError):  # it has ended, and its output says why
            self.process.stdin.write(b"\n")
            self.process.stdin.close()
        return arguments

    # -- what it says

    def read_agent(self) -> None:
        """torchrun's own lines; those of the program too, where it is no Python program."""
        self.agent_rest = self.lines(self.process.stdout.fileno(), self.agent_rest, self.agent_line)

    def agent_line(self, text: str) -> None:
        self.agent.append(text)
        if self.plan.debug or self.plan.program[0] == "--no-python":
            sys.stdout.write(text + "\n")
        if found := FIRST.search(text):
            rank = self.ranks[int(found[2])]
            rank.exit_code = int(found[1])
            self.fail(rank)

    def read_rank(self, local: int, pipe: int) -> None:
        self.read_events()  # a rank says first that it fails, then prints why
        rank = self.ranks[local]
        rank.rest = self.lines(pipe, rank.rest, lambda text: self.rank_line(local, text))

    def rank_line(self, local: int, text: str) -> None:
        rank = self.ranks[local]
        rank.tail.append(text)
        if rank.error and (rank is not self.first or rank.echoes) and not self.plan.debug:
            rank.folded += 1
            with contextlib.suppress(OSError), open(self.kept / f"folded-rank-{rank.number}.txt", "a") as file:
                file.write(text + "\n")
        else:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    @staticmethod
    def lines(pipe: int, rest: bytes, take) -> bytes:
        """Give the whole lines to `take` and keep what is left."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(pipe, 65536):
                *whole, rest = (rest + data).split(b"\n")
                for line in whole:
                    take(line.decode(errors="replace"))
                if len(rest) > 65536:
                    take(rest.decode(errors="replace"))
                    rest = b""
        return rest

    def read_events(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := self.events.recv(65536):
                event = json.loads(data)
                rank = self.ranks[event["local"]]
                if event["event"] == "start":
                    self.begin(event["local"], event["pid"], event["rank"], event["world"])
                elif event["event"] == "error":
                    rank.error = event
                    self.fail(rank)
                elif event["event"] == "end":
                    rank.end, rank.why = event["code"], event["why"]
                    if rank.end:
                        self.fail(rank)
                elif event["event"] == "step" and not self.stepped:
                    self.stepped = True
                    log("STEP", rank=rank.number, first_step="done", seconds=time.monotonic() - self.started)
                elif event["event"] == "formed" and event["local"] == 0:
                    log("DDP", phase="process group", world=event["world"], seconds=event["seconds"])

    # -- how it ends

    def fail(self, rank: Rank) -> None:
        """The first rank that fails, unless it is only an echo of another's failure."""
        if self.first is None or (self.first.echoes and not rank.echoes):
            self.first = rank

    def failure(self) -> dict | None:
        """What is wrong on this node, once the lines that the rank printed before have come."""
        if self.formed and self.seen_world != self.plan.world:
            what = f"torchrun formed a world of {self.seen_world}, not of {self.plan.world}"
            return {"key": "not-formed", "rank": None, "what": what}
        if self.first is None:
            return None
        for local, pipe in self.pipes.items():
            self.read_rank(local, pipe)
        return self.first.failure(oom=oom_kills() > self.oom_kills)

    def agent_failure(self, code: int) -> dict:
        """torchrun ended before any rank failed: what it said is all there is."""
        text = "\n".join(self.agent)
        cause = explain(text)
        words = [line for line in self.agent if re.search(r"Error|error:|Exception", line)]
        phase = "run" if self.formed else "rendezvous"
        what = f"torchrun ended with {code}: {words[-1].strip()[:400] if words else 'it says nothing'}"
        unknown = "failed" if self.formed else "not-formed"
        return {"key": cause.key if cause else unknown, "rank": None, "what": what, "phase": phase}

    async def watch(self) -> int:
        """Until torchrun has ended; its exit code."""
        while (code := self.process.poll()) is None:
            if not self.formed and self.plan.program[0] == "--no-python":
                self.look_for_ranks()
            now = time.monotonic()
            for rank in self.ranks.values():
                if rank.pid and not rank.gone_at and state(rank.pid) in ("", "Z"):
                    rank.gone_at = now
            dead = [r for r in self.ranks.values() if r.gone_at and r.end != 0 and now - r.gone_at > GIVE_UP_S]
            if dead:  # torchrun waits half a minute for the other ranks before it says so
                kill([r.pid for r in self.ranks.values() if not r.gone_at and r.pid], signal.SIGKILL)
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.05)
        self.read_agent()
        self.read_events()
        return code

    def look_for_ranks(self) -> None:
        """Of a program that is no Python program: torchrun's children, which it makes when its rendezvous is done."""
        for pid, environ in children(self.process.pid):
            local = environ.get("LOCAL_RANK", "")
            if local.isdecimal() and int(local) in self.ranks:
                self.begin(int(local), pid, int(environ["RANK"]), int(environ["WORLD_SIZE"]))

    def begin(self, local: int, pid: int, number: int, world: int) -> None:
        """A rank exists, so torchrun's rendezvous is done."""
        self.ranks[local].pid, self.ranks[local].number, self.seen_world = pid, number, world
        if not self.formed and all(rank.pid for rank in self.ranks.values()):
            self.formed = True
            ranks = ",".join(str(rank.number) for rank in self.ranks.values())
            log("DDP", phase="world formed", world=world, ranks=ranks, seconds=time.monotonic() - self.started)

    async def where(self) -> dict[str, str]:
        """Rank -> where it is, asked now."""
        for local, rank in self.ranks.items():
            with contextlib.suppress(OSError):
                (self.folder / f"stack-{local}").write_text("")
            # What rank_wrapper.py does not run has no handler, and would be ended by it.
            if rank.pid and rank.end is None and not rank.error and self.plan.program[0] != "--no-python":
                kill([rank.pid], signal.SIGUSR2)
        await asyncio.sleep(0.3)
        return {str(rank.number): rank.place(self.folder / f"stack-{local}") for local, rank in self.ranks.items()}

    def stop_ranks(self) -> None:
        """SIGTERM for the program, on all ranks at once; torchrun itself goes on and waits for them."""
        pids = [rank.pid for rank in self.ranks.values() if rank.pid]
        kill(pids or [self.process.pid], signal.SIGTERM)

    def kill_ranks(self) -> None:
        """Their grace is over."""
        kill([self.process.pid, *descendants(self.process.pid)] if self.process.poll() is None else [], signal.SIGKILL)

    def outcome(self, code: int) -> str:
        """After a stop: done, saved or stopped."""
        ends = {rank.end for rank in self.ranks.values()}
        if code == 0:
            return "done"
        return "saved" if ends <= {0, 75} and None not in ends else "stopped"

    async def close(self) -> None:
        """No process of the run stays behind."""
        everyone = [self.process.pid, *descendants(self.process.pid)] if self.process.poll() is None else []
        kill(everyone, signal.SIGTERM)
        end = time.monotonic() + QUIT_S
        while any(state(pid) not in ("", "Z", "T") for pid in everyone) and time.monotonic() < end:
            self.process.poll()
            await asyncio.sleep(0.05)
        kill([pid for pid in everyone if state(pid) not in ("", "Z")], signal.SIGKILL)
        if self.kept:
            self.read_agent()
        folded = [f"rank {rank.number}: {rank.folded} lines" for rank in self.ranks.values() if rank.folded]
        if folded:
            log("DDP", folded=", ".join(folded), kept=self.kept if self.plan.out else "DEBUG_DISTRIBUTED=1 shows them")
        if self.kept and self.kept != self.folder:
            with contextlib.suppress(OSError):  # it holds something, or another node on the same volume was first
                self.kept.rmdir()
        shutil.rmtree(self.folder, ignore_errors=True)


def oom_kills() -> int:
    """How many processes of this container the kernel has killed for memory."""
    for file in ("memory.events", "memory/memory.oom_control"):  # of cgroup v2, of v1
        with contextlib.suppress(OSError):
            for line in Path("/sys/fs/cgroup", file).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0
