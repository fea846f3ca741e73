"""Server of one rank: keeps the state of the group as this rank knows it, and replies to the other agents."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

from gpuworker.group.group_state import GroupPlan, GroupState
from gpuworker.group.peer_client import REQUEST_TIMEOUT_S, PeerClient
from gpuworker.group.protocol import CODEC, Reply, Request
from gpuworker.group.state_store import StateFolder, VolumeStore
from gpuworker.runtime.json_lines import encode
from gpuworker.runtime.log import log


class RankServer:
    """`host` is that of this rank, TASK-RANK. In `folder` the group's state survives a restart of this container."""

    def __init__(self, plan: GroupPlan, host: str, folder: Path, run: str, attempt: str):
        self.plan, self.host, self.task, self.folder = plan, host, plan.task_of(host), folder.parent
        self.run, self.attempt, self.state = run, attempt, GroupState()
        # Ranks whose task containers run: this one, and in the leader all that have sent a request.
        self.joined: set[str] = set()
        self.missing = ""  # a rank's join timeout has passed; describes the missing ranks
        self.changed = asyncio.Event()
        self.peers = PeerClient(plan.domain, Request(run, attempt, host))
        self.store = StateFolder(folder, host)
        self.volume: VolumeStore | None = None
        with self.store_errors():
            for kept in self.store.load():
                self.state.merge(kept, plan.hosts)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = CODEC.decode(await asyncio.wait_for(reader.readline(), REQUEST_TIMEOUT_S))
            if isinstance(request, Request) and (request.run, request.attempt) == (self.run, self.attempt):
                await self.reply(request, reader, writer)
        except (OSError, ValueError, TypeError, asyncio.TimeoutError):
            pass  # not an agent of this group, or its connection was closed
        finally:
            writer.close()

    async def reply(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.merge(request.state)
        if request.missing:
            self.missing = request.missing
            self.notify()
        if request.joined and request.rank in self.plan.hosts:
            if request.rank not in self.joined:
                self.joined.add(request.rank)
                self.notify()
            closed = asyncio.create_task(reader.read())  # ends when the sender closes the connection
            while not (self.state.released or closed.done() or self.missing):
                await self.next_change(closed)
            closed.cancel()
        writer.write(encode(Reply(self.state, self.host in self.joined, self.missing)))
        await writer.drain()

    def notify(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    async def next_change(self, *others: asyncio.Task, timeout: float | None = None) -> None:
        change = asyncio.create_task(self.changed.wait())
        await asyncio.wait([change, *others], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        change.cancel()

    def merge(self, other: GroupState) -> None:
        """Add another rank's state, and keep the result."""
        before = encode(self.state)
        self.state.merge(other, self.plan.hosts)
        if encode(self.state) != before:
            with self.store_errors():
                self.store.save(self.state)
            if self.volume:
                self.volume.save(self.state)
            self.notify()

    @contextlib.contextmanager
    def store_errors(self) -> Iterator[None]:
        """A disk that fails costs what a restart could have read, not the rank."""
        try:
            yield
        except OSError as error:
            log("GROUP", rank=self.host, state_store=self.store.folder, error=error.strerror or error)
