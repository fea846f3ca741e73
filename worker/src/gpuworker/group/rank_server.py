"""Server of one rank: keeps the state of the group as this rank knows it, and replies to the other agents."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from gpuworker.group.group_state import GroupPlan, GroupState
from gpuworker.group.peer_client import REQUEST_TIMEOUT_S, PeerClient
from gpuworker.group.protocol import CODEC, Reply, Request
from gpuworker.runtime.json_lines import encode


class RankServer:
    """`host` is that of this rank, TASK-RANK. `stores` are folders in which the group's state survives a restart."""

    def __init__(self, plan: GroupPlan, host: str, folder: Path, stores: list[Path], run: str, attempt: str):
        self.plan, self.host, self.task, self.folder, self.stores = plan, host, plan.task_of(host), folder, stores
        self.run, self.attempt, self.state = run, attempt, GroupState()
        # Ranks whose task containers run: this one, and in the leader all that have sent a request.
        self.joined: set[str] = {host} if (folder / "joined").exists() else set()
        self.missing = ""  # a rank's join timeout has passed; describes the missing ranks
        self.changed = asyncio.Event()
        self.peers = PeerClient(plan.domain, Request(run, attempt, host))
        for store in stores:
            store.mkdir(parents=True, exist_ok=True)
            for file in store.glob("*.json"):
                with contextlib.suppress(OSError, ValueError, TypeError):
                    if isinstance(kept := CODEC.decode(file.read_bytes()), GroupState):
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
        """Add another rank's state, and keep the result in every store."""
        before = encode(self.state)
        self.state.merge(other, self.plan.hosts)
        if encode(self.state) != before:
            for store in self.stores:
                scratch = store / f"{self.host}.tmp"
                scratch.write_bytes(encode(self.state))
                scratch.replace(store / f"{self.host}.json")
            self.notify()
