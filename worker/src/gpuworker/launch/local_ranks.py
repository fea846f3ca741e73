"""The ranks of this node: events from their runners and wrappers, their ends, signals to them, and their stacks.

Only this file signals the program. Before a SIGKILL it logs why, so that nobody takes it for the kernel's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Iterable
from pathlib import Path

from gpuworker.launch.config import LaunchConfig
from gpuworker.launch.protocol import NodeState, RankFailure, Stacks
from gpuworker.launch.rank_state import GOOD_CODES, RankState
from gpuworker.launch.rank_wrapper import STACK_SIGNAL
from gpuworker.runtime.contract import ExitCode, Tag
from gpuworker.runtime.log import log
from gpuworker.runtime.processes import behind_shells, catches, kill, oom_kills, state

EVENTS_PER_TURN = 200  # so that a rank that reports without end leaves time for heartbeats
ERROR_S = 5.0  # an exception is a failure after this time, even if the process still runs its exit handlers


class LocalRanks:
    """`states`: local rank -> its state."""

    def __init__(self, config: LaunchConfig, folder: Path):
        self.config, self.folder = config, folder
        first = config.node_rank * config.nproc_per_node
        self.states = {local: RankState(first + local) for local in range(config.nproc_per_node)}
        self.world_size = 0  # as the ranks see it
        self.stepped = False
        self.stop_deadline = 0.0  # when the grace period of a stop is over
        self.ended_unread = False  # a rank has ended since the last look at all connections
        self.hang_seen = False  # NCCL's watchdog has printed that a collective timed out
        self.started_at = time.monotonic()
        self.oom_kills = oom_kills()
        self.connections: set[socket.socket] = set()
        self.runners: dict[int, socket.socket] = {}
        self.wrappers: dict[int, socket.socket] = {}
        self.loop = asyncio.get_running_loop()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        handle = os.open(folder, os.O_RDONLY)  # a path may be longer than an address of a socket may be
        self.listener.bind(f"/proc/self/fd/{handle}/events")
        os.close(handle)
        self.listener.listen(4096)
        self.loop.add_reader(self.listener, self.on_connect)

    # -- events

    def on_connect(self) -> None:
        with contextlib.suppress(OSError):  # BlockingIOError: no more
            while True:
                connection, _ = self.listener.accept()
                connection.setblocking(False)
                self.connections.add(connection)
                self.loop.add_reader(connection, self.on_readable, connection)

    def drain(self) -> None:
        """Read what has arrived: a wrapper reports an exception before its runner reports the end, on another line."""
        self.on_connect()
        for connection in list(self.connections):
            self.on_readable(connection)

    def on_readable(self, connection: socket.socket) -> None:
        for _ in range(EVENTS_PER_TURN):
            try:
                data = connection.recv(1 << 18)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.on_close(connection)
                return
            # The program may have written to our socket.
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
                event = json.loads(data)
                self.on_event(event.pop("event"), event.pop("local"), event, connection)

    def on_close(self, connection: socket.socket) -> None:
        self.loop.remove_reader(connection)
        self.connections.discard(connection)
        connection.close()
        for local, runner in list(self.runners.items()):
            if runner is connection:
                del self.runners[local]
                rank = self.states[local]
                if rank.code is None:  # the runner was killed, and the program with it
                    rank.on_end(-signal.SIGKILL, [], {})
        self.wrappers = {local: other for local, other in self.wrappers.items() if other is not connection}

    def on_event(self, event: str, local: int, facts: dict, connection: socket.socket) -> None:
        rank, now = self.states[local], time.monotonic()
        if event == "start":
            self.runners[local] = connection
            rank.pid, rank.rank, self.world_size = facts["pid"], facts["rank"], facts["world"]
            rank.progress_at = now
            if self.stop_deadline:  # the stop came between torchrun's start and its ranks'
                self.terminate([rank])
            if self.formed:
                ranks = ",".join(str(rank.rank) for rank in self.states.values())
                log(Tag.DDP, phase="world formed", world=self.world_size, ranks=ranks, seconds=now - self.started_at)
        elif event == "end":
            rank.on_end(facts["code"], facts["tail"], facts["evidence"])
            self.ended_unread = True
        elif event == "output":
            rank.progress_at = rank.progress_at if rank.steps else now
        elif event == "evidence":
            rank.on_evidence(facts["line"], facts["at"])
            self.hang_seen = self.hang_seen or "Watchdog caught collective operation timeout" in facts["line"]
        elif event == "wrapped":
            rank.wrapped, self.wrappers[local] = True, connection
        elif event == "error":
            rank.error, rank.error_at = facts, now
        elif event == "ending":
            rank.ending, rank.ending_at = facts, now
        elif event == "sequence":
            rank.sequence = facts["numbers"]
        elif event == "step":
            rank.steps, rank.progress_at, rank.stepped_at = True, now, facts["at"]
            if not self.stepped:
                self.stepped = True
                log(Tag.STEP, rank=rank.rank, first_step="done", seconds=now - self.started_at)
        elif event == "formed" and local == 0:
            log(Tag.DDP, phase="process group", world=facts["world"], seconds=facts["seconds"])

    # -- facts

    @property
    def formed(self) -> bool:
        """Every rank was started, so torchrun's rendezvous is complete."""
        return all(rank.pid for rank in self.states.values())

    @property
    def all_ended(self) -> bool:
        return all(rank.code is not None for rank in self.states.values())

    def final_state(self) -> NodeState | None:
        """The node's state once all ranks have ended without a failure, or while the run stops; else None."""
        if not self.all_ended:
            return None
        codes = {rank.code for rank in self.states.values()}
        if codes == {ExitCode.DONE}:
            return NodeState.DONE
        if codes <= set(GOOD_CODES):
            return NodeState.SAVED
        return NodeState.STOPPED if self.stop_deadline else None

    def progress_age(self) -> float:
        """Seconds since the last progress of any rank: an optimizer step, or output of a rank that has made none.

        0 while a rank has left its main program: that wait has a time-out of its own.
        """
        running = [rank for rank in self.states.values() if rank.pid and rank.code is None]
        if any(rank.ending for rank in running):
            return 0.0
        return min((time.monotonic() - rank.progress_at for rank in running), default=0.0)

    def failure(self) -> RankFailure | None:
        """The first failure of this node; a failure of this node's own is before one that follows from a peer."""
        config, now = self.config, time.monotonic()
        if self.ended_unread:
            self.ended_unread = False
            self.drain()
        if self.formed and self.world_size != config.world_size:
            detail = f"torchrun formed a world of {self.world_size}, not of {config.world_size}"
            return RankFailure("world-not-formed", None, detail)
        failed = [rank for rank in self.states.values() if rank.failed or self.has_error(rank, now)]
        if failed:
            oom = oom_kills() > self.oom_kills
            failed.sort(key=lambda rank: (rank.cause(oom).secondary, rank.error_at or rank.ended_at))
            return failed[0].failure(oom)
        for rank in self.states.values():
            limit = config.timeouts["exit-timeout"]
            if rank.ending and not rank.error and rank.code is None and now > rank.ending_at + limit:
                where = rank.location(self.folder / "none")
                return RankFailure("exit-timeout", rank.rank, f"it {where}, for {limit} s")
        return None

    def has_error(self, rank: RankState, now: float) -> bool:
        """Whether a running rank's exception counts: a time-out at once, while the rank waits to be asked about it."""
        return rank.code is None and bool(rank.error) and (rank.error["waits"] or now > rank.error_at + ERROR_S)

    async def collect(self) -> Stacks:
        """Where every rank is now, and how many collectives it has started."""
        for local, rank in self.states.items():
            with contextlib.suppress(OSError):
                (self.folder / f"stack-{local}").write_text("")
            # A program without the wrapper, or one that replaced it (exec), has no handler, and would end.
            if rank.wrapped and rank.code is None and not rank.error and catches(rank.pid, STACK_SIGNAL):
                kill([rank.pid], STACK_SIGNAL)
        for connection in self.wrappers.values():
            with contextlib.suppress(OSError):
                connection.send(b"sequence")
        await asyncio.sleep(0.4)
        places = {str(rank.rank): rank.location(self.folder / f"stack-{local}") for local, rank in self.states.items()}
        return Stacks(places, {str(rank.rank): rank.sequence for rank in self.states.values() if rank.sequence})

    # -- signals

    def terminate(self, ranks: Iterable[RankState] = ()) -> None:
        """Send SIGTERM to the programs of these ranks, or of all."""
        for rank in ranks or self.states.values():
            if rank.pid and rank.code is None:
                kill(behind_shells(rank.pid, signal.SIGTERM), signal.SIGTERM)

    def kill(self, reason: str, numbers: list[int] | None = None) -> None:
        """Send SIGKILL to what still runs, or to the ranks `numbers` only, and log why."""
        running = [rank for rank in self.states.values() if rank.pid and rank.code is None]
        running = [rank for rank in running if numbers is None or rank.rank in numbers]
        if running:
            ranks = ",".join(str(rank.rank) for rank in running)
            log(Tag.DDP, phase="kill", ranks=ranks, reason=reason)
        for rank in running:
            rank.killed = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(rank.pid, signal.SIGKILL)

    def release(self) -> None:
        """Let torchrun see that the ranks have ended."""
        for connection in self.runners.values():
            with contextlib.suppress(OSError):
                connection.send(b"release")

    def running(self) -> list[int]:
        """Processes of ranks that can still end by themselves; a stopped one cannot."""
        return [rank.pid for rank in self.states.values()
                if rank.pid and rank.code is None and state(rank.pid) not in ("", "Z", "T", "t")]  # fmt: skip

    def close(self) -> None:
        self.loop.remove_reader(self.listener)
        self.listener.close()
        for connection in self.connections:
            self.loop.remove_reader(connection)
            connection.close()
