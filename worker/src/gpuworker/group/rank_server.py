"""Server of one rank: keeps the state of the group as this rank knows it, and replies to the
other agents.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

from gpuworker.group.group_state import GroupPlan, GroupState
from gpuworker.group.peer_client import REQUEST_TIMEOUT_S, PeerClient
from gpuworker.group.protocol import CODEC, PURPOSE, Reply, Request
from gpuworker.runtime.json_lines import LINE_LIMIT, encode
from gpuworker.runtime.line_server import Strangers
from gpuworker.runtime.log import log
from gpuworker.runtime.message_auth import LineStream
from gpuworker.runtime.plain_files import NotPlainError, read_plain, replace_plain

MAX_STRANGERS = 128  # connections that have not sent a request of this group yet


class RankServer:
    """`host` is that of this rank, TASK-RANK. In `folder` the group's state survives a restart of
    this container. With a `key` only ranks that have it are served."""

    def __init__(
        self, plan: GroupPlan, host: str, folder: Path, run: str, attempt: str, key: bytes = b""
    ):
        self.plan, self.host, self.task, self.folder = plan, host, plan.task_of(host), folder
        self.run, self.attempt, self.key, self.state = run, attempt, key, GroupState()
        # Ranks whose task containers run: this one, and in the leader all that have sent a request.
        self.joined: set[str] = set()
        self.missing = ""  # a rank's join timeout has passed; describes the missing ranks
        self.changed = asyncio.Event()
        self.peers = PeerClient(plan.domain, Request(run, attempt, host), plan.line_limit, key)
        self.strangers = Strangers(MAX_STRANGERS)
        self.waiting: dict[str, asyncio.StreamWriter] = {}  # connections of ranks that have joined
        self.file = folder / f"{host}.json"  # with the state, for a restart of this container
        self.load()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.strangers.add(writer)
        try:
            stream = LineStream(reader, writer, self.key, PURPOSE)
            request = await asyncio.wait_for(self.request(stream), REQUEST_TIMEOUT_S)
            if isinstance(request, Request) and (request.run, request.attempt) == (
                self.run,
                self.attempt,
            ):
                self.strangers.discard(writer)
                await self.reply(request, stream)
        except (OSError, ValueError, asyncio.TimeoutError):
            writer.transport.abort()  # not an agent of this group, or its connection was closed
        finally:
            self.strangers.discard(writer)
            writer.close()

    @staticmethod
    async def request(stream: LineStream) -> object | None:
        await stream.start(client=False)
        return CODEC.decode(await stream.readline())

    async def reply(self, request: Request, stream: LineStream) -> None:
        self.merge(request.state)
        if request.missing:
            self.missing = request.missing
            self.notify()
        if request.joined and request.rank in self.plan.hosts:
            await self.hold(request.rank, stream.reader, stream.writer)
        stream.write(encode(Reply(self.state, self.host in self.joined, self.missing)))
        await asyncio.wait_for(stream.writer.drain(), REQUEST_TIMEOUT_S)

    async def hold(
        self, rank: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Wait until the group is released, a join timeout has passed, or the sender has closed
        the connection.
        """
        if before := self.waiting.get(rank):
            before.transport.abort()
        self.waiting[rank] = writer
        if rank not in self.joined:
            self.joined.add(rank)
            self.notify()

        async def closed_by_sender() -> None:
            with contextlib.suppress(OSError):
                await reader.read(1)  # an agent sends nothing after its request

        closed = asyncio.create_task(closed_by_sender())
        try:
            while not (self.state.released or closed.done() or self.missing):
                await self.next_change(closed)
        finally:
            closed.cancel()
            if self.waiting.get(rank) is writer:
                del self.waiting[rank]

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
            with self.file_errors():
                replace_plain(self.file, encode(self.state))
            self.notify()

    def load(self) -> None:
        """Merge the state of an earlier start. The task may have put anything else there."""
        with self.file_errors(), contextlib.suppress(FileNotFoundError, NotPlainError):
            state = CODEC.decode(read_plain(self.file, LINE_LIMIT))
            if isinstance(state, GroupState):
                self.state.merge(state, self.plan.hosts)

    @contextlib.contextmanager
    def file_errors(self) -> Iterator[None]:
        """A disk that fails costs what a restart could have read, not the rank."""
        try:
            yield
        except OSError as error:
            log("GROUP", rank=self.host, file=self.file, error=error.strerror or error)
