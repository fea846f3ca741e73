"""Server on node 0: the connections of all nodes, between them and the coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import time

from gpuworker.launch.coordinator import Coordinator
from gpuworker.launch.failure_causes import Failure
from gpuworker.launch.protocol import CODEC, HEARTBEAT_S, PURPOSE, Orders, Status
from gpuworker.launch.root_cause import Node
from gpuworker.runtime.json_lines import LINE_LIMIT, encode
from gpuworker.runtime.line_server import Strangers, listen
from gpuworker.runtime.message_auth import LineStream

FIRST_TIMEOUT_S, FIRST_LIMIT = 10, 1 << 15  # seconds and bytes of the first status
MAX_STRANGERS = 1024  # beside one per node: connections that have sent no status of this run yet
# How long the verdict is served to pods that start a little later than the one whose fault ended
# the run, and how long after the join deadline.
LINGER_S, LATE_S = 4, 1
LOOK_S = 0.1
MISSING_NAMED = 20


class Server:
    """Gives the coordinator what the nodes tell, and all nodes its orders."""

    def __init__(self, coordinator: Coordinator):
        self.coordinator, self.config = coordinator, coordinator.config
        self.streams: dict[LineStream, int] = {}  # of nodes of this run -> their index
        self.strangers = Strangers(self.config.nnodes + MAX_STRANGERS)
        self.sent = b""
        self.server: asyncio.Server | None = None
        self.working: asyncio.Task | None = None

    async def start(self) -> None:
        """Listen. Raises port-in-use."""
        port, nodes = self.config.launcher_port, self.config.nnodes
        try:
            self.server = await listen(self.serve, None, port, FIRST_LIMIT, nodes, self.strangers)
        except OSError as error:
            reason = f"port {port} is in use on node 0 ({error.strerror})"
            raise Failure("port-in-use", reason) from None
        self.working = asyncio.create_task(self.work())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until it ends."""
        coordinator, node = self.coordinator, None
        stream = LineStream(reader, writer, self.config.key, PURPOSE)
        self.strangers.add(writer)
        try:
            first = await asyncio.wait_for(first_line(stream), FIRST_TIMEOUT_S)
            status = CODEC.decode(first)
            if not isinstance(status, Status):
                return
            if status.run_id != self.config.run_id:
                # Never with this run's id, which without a key is all that a message needs.
                stream.write(encode(Orders(rejected="belongs to another run")))
                return
            self.strangers.discard(writer)
            reader._limit = LINE_LIMIT  # of a node; StreamReader has no public way to change it
            joining = Node(status, time.monotonic())
            if reason := coordinator.join(joining, time.monotonic()):
                stream.write(encode(Orders(rejected=reason)))
                return
            node, self.streams[stream] = joining, status.info.node
            stream.write(encode(coordinator.orders))
            while line := await stream.readline():
                status = CODEC.decode(line)
                if isinstance(status, Status):
                    coordinator.hear(node, status, time.monotonic())
        except (asyncio.TimeoutError, asyncio.CancelledError, OSError, ValueError):
            pass  # a stranger, a line that was cut, or the end of the run
        finally:
            self.strangers.discard(writer)
            writer.close()
            if node:
                coordinator.leave(node)
            if not coordinator.ended:
                self.streams.pop(stream, None)

    async def work(self) -> None:
        """Let the coordinator decide, and send its orders when they have changed."""
        coordinator, beat_at, looked_at = self.coordinator, 0.0, time.monotonic()
        while not coordinator.ended:
            await asyncio.sleep(LOOK_S)
            now = time.monotonic()
            if now - looked_at > 2 * HEARTBEAT_S:
                coordinator.resume(now, now - looked_at)
            looked_at = now
            coordinator.decide(now)
            if now > beat_at + HEARTBEAT_S:
                beat_at = now
                coordinator.orders.missing = coordinator.missing()[:MISSING_NAMED]
                self.broadcast(b"\n")
            self.send_orders()

    def send_orders(self) -> None:
        if (line := encode(self.coordinator.orders)) != self.sent:
            self.sent = line
            self.broadcast(line)

    def broadcast(self, line: bytes) -> None:
        for stream in self.streams:
            if not stream.writer.is_closing():
                stream.write(line)

    async def close(self, verdict: Failure | None) -> None:
        """Let every node read the verdict before this process ends, also those that only start."""
        coordinator, now = self.coordinator, time.monotonic()
        if verdict:
            coordinator.finish(verdict, now)
        if coordinator.ended:
            self.send_orders()
        end = min(now + LINGER_S, coordinator.join_deadline + LATE_S)
        while coordinator.ended and not coordinator.started and time.monotonic() < end:
            if len(set(self.streams.values())) >= self.config.nnodes:
                break
            await asyncio.sleep(LOOK_S)
        if self.server:
            self.server.close()
        if self.working:
            self.working.cancel()
        for stream in self.streams:
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(stream.writer.drain(), 1)
                stream.writer.write_eof()


async def first_line(stream: LineStream) -> bytes:
    await stream.start(client=False)
    return await stream.readline()
