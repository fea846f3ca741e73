"""Participant: a node's connection to the coordinator on node 0."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import time
from collections.abc import Callable

from gpuworker.launch import protocol
from gpuworker.launch.config import LaunchConfig
from gpuworker.launch.failure_causes import Failure
from gpuworker.launch.network import classify_port_failure, look_up
from gpuworker.launch.root_cause import bounded
from gpuworker.runtime.json_lines import LINE_LIMIT, encode
from gpuworker.runtime.message_auth import LineStream

Handlers = dict[type, Callable[[object], None]]


class Participant:
    """`go` and `end` hold the messages of that name; `handlers`: class -> who gets the others."""

    def __init__(
        self, config: LaunchConfig, info: protocol.NodeInfo, address: str, handlers: Handlers
    ):
        self.config, self.info, self.address, self.handlers = config, info, address, handlers
        self.heartbeat: Callable[[], protocol.Heartbeat] = protocol.Heartbeat
        self.started = False  # Go has arrived once
        self.attempt, self.started_at = 0, 0.0  # of the first Go
        self.go: asyncio.Future[protocol.Go] = asyncio.get_running_loop().create_future()
        self.end: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()
        self.stream: LineStream | None = None
        self.missing: list[int] = []
        self.last_heartbeat = 0.0
        self.failure = ("connection-refused", "was not reached")  # of the last attempt to connect

    async def join(self, deadline: float) -> protocol.Go:
        """Connect to node 0, and wait until all nodes have joined. Raises Failure."""
        self.connection = asyncio.create_task(self.stay_connected(deadline))
        return await self.wait_for_go(deadline + 1)

    async def wait_for_go(self, deadline: float) -> protocol.Go:
        """Wait until all nodes have joined and are ready. Raises Failure."""
        waits = {self.go, self.end, self.connection}
        timeout_s = None if deadline == math.inf else deadline - time.monotonic()
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self.end.done():
            raise self.end.result()
        if self.go.done():
            return self.go.result()
        timeout_s = self.config.timeouts["join-timeout"]
        if self.last_heartbeat:  # the coordinator has our node info, and others are missing
            names = ", ".join(f"node {index}" for index in self.missing[:20]) or "node 0"
            raise Failure("node-missing", f"{names} did not join within {timeout_s} s", "preflight")
        cause, detail = self.failure
        where = (
            f"node 0 at {self.config.master_addr} ({self.address}) port {self.config.launcher_port}"
        )
        raise Failure(cause, f"{where} {detail}, for {timeout_s} s", "preflight")

    async def stay_connected(self, deadline: float) -> None:
        """Keep a connection to node 0. When it ends, it is made again; after Go the run ends."""
        while True:
            await self.connect(max(1.0, min(5.0, deadline - time.monotonic())))
            if self.started:
                await asyncio.sleep(1)  # another task may still deliver the last message
                self.lose_node_0("node 0 closed the connection without a report")
                return
            self.last_heartbeat = 0.0
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(0.3)
            # Node 0 may have a new pod, or DNS may have returned the address of the previous one.
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                self.address = await asyncio.wait_for(look_up(self.config.master_addr), 1)

    async def connect(self, timeout_s: float) -> None:
        """One connection, until it ends."""
        writer = None
        try:
            try:
                connecting = asyncio.open_connection(
                    self.address, self.config.launcher_port, limit=LINE_LIMIT
                )
                reader, writer = await asyncio.wait_for(connecting, timeout_s)
            except (OSError, asyncio.TimeoutError) as error:
                # The other run may have ended since, and its answer says more.
                if self.failure[0] != "other-run":
                    self.failure = classify_port_failure(error, None)
                return
            self.info.clock = time.time()
            stream = LineStream(reader, writer, self.config.key, protocol.VERSION)
            try:
                line = await asyncio.wait_for(self.first_reply(stream), timeout_s)
            except asyncio.TimeoutError:
                self.failure = classify_port_failure(None, None)
                return
            except (OSError, ValueError) as error:
                self.failure = classify_port_failure(error, b"?")
                return
            reply = protocol.CODEC.decode(line)
            if isinstance(reply, protocol.Rejected):
                self.failure = ("other-run", reply.reason)
                return
            if not isinstance(reply, protocol.Welcome | protocol.End):
                self.failure = classify_port_failure(None, line)
                return
            self.stream = stream
            self.on_message(reply)
            heartbeats = asyncio.create_task(self.send_heartbeats())
            with (
                contextlib.suppress(OSError, ValueError),
                writer.get_extra_info("socket").dup() as connection,
            ):
                try:
                    await self.read(stream)
                except OSError:
                    # A write failed, and asyncio has closed the connection without reading what is
                    # in it: after a freeze of this process, perhaps the verdict.
                    stream.reader = remaining(connection)
                    await self.read(stream)
            heartbeats.cancel()
        finally:
            self.stream = None
            if writer:
                writer.close()

    async def read(self, stream: LineStream) -> None:
        while line := await stream.readline():
            self.on_message(protocol.CODEC.decode(line))

    async def first_reply(self, stream: LineStream) -> bytes:
        await stream.start(client=True)
        stream.write(encode(protocol.Hello(protocol.VERSION, self.config.run_id, self.info)))
        return await stream.readline()

    def on_message(self, message: object) -> None:
        self.last_heartbeat = time.monotonic()
        if isinstance(message, protocol.Welcome | protocol.Heartbeat):
            self.missing = message.missing
        elif isinstance(message, protocol.Go):
            if not self.started:
                self.started, self.attempt, self.started_at = (
                    True,
                    message.attempt,
                    time.monotonic(),
                )
            if not self.go.done():
                self.go.set_result(message)
        elif isinstance(message, protocol.End):
            self.set_end(message.verdict)
        elif handler := self.handlers.get(type(message)):
            handler(message)

    def set_end(self, end: Failure) -> None:
        if not self.end.done():
            self.end.set_result(end)

    def lose_node_0(self, reason: str) -> None:
        end = Failure("node-lost", reason)
        self.set_end(bounded(end, self.attempt, time.monotonic() - self.started_at))

    async def send_heartbeats(self) -> None:
        timeout_s = self.config.timeouts["heartbeat-timeout"]
        while True:
            self.send(self.heartbeat())
            before = time.monotonic()
            await asyncio.sleep(protocol.HEARTBEAT_S)
            # This process was frozen: what node 0 sent, perhaps the verdict, is not yet read.
            if time.monotonic() - before > 2 * protocol.HEARTBEAT_S:
                self.last_heartbeat = time.monotonic()
            if self.started and time.monotonic() - self.last_heartbeat > timeout_s:
                reason = f"node 0 sent no heartbeat for {timeout_s} s"
                # A frozen node 0 reads this when it goes on; else it would see only our end.
                self.send(Failure("node-lost", reason))
                self.lose_node_0(reason)

    def send(self, message: object) -> None:
        if self.stream:
            with contextlib.suppress(OSError, RuntimeError):
                self.stream.write(encode(message))


def remaining(connection: socket.socket) -> asyncio.StreamReader:
    """What a connection still holds. It does not wait."""
    reader = asyncio.StreamReader(limit=LINE_LIMIT)
    with contextlib.suppress(OSError):  # no more, or reset
        while data := connection.recv(LINE_LIMIT):
            reader.feed_data(data)
    reader.feed_eof()
    return reader
