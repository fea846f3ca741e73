"""Both ends of the connections between nodes: the server on node 0, and each node's participant.

What is said is in protocol.py, and what node 0 decides in coordinator.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from gpuworker.launch.config import LaunchConfig
from gpuworker.launch.coordinator import Coordinator
from gpuworker.launch.failure_causes import BY_KEY, Failure
from gpuworker.launch.preflight import classify_port_failure, look_up
from gpuworker.launch.protocol import HEARTBEAT_S, ORDERS, PURPOSE, STATUS, Orders, Status
from gpuworker.launch.root_cause import Node, bounded
from gpuworker.runtime.json_lines import LINE_LIMIT, encode
from gpuworker.runtime.line_server import Strangers, listen
from gpuworker.runtime.message_auth import LineStream

FIRST_TIMEOUT_S, FIRST_LIMIT = 10, 1 << 15  # seconds and bytes of the first status
MAX_STRANGERS = 1024  # beside one per node: connections that have sent no status of this run yet
# How long the verdict is served to pods that start a little later than the one whose fault ended
# the run, and how long after the join deadline.
LINGER_S, LATE_S = 4, 1
RETRY_S = 0.3


class Server:
    """Gives the coordinator what the nodes tell, and all nodes its orders."""

    def __init__(self, coordinator: Coordinator):
        self.coordinator, self.config = coordinator, coordinator.config
        self.streams: set[LineStream] = set()  # of nodes of this run
        self.strangers = Strangers(self.config.nnodes + MAX_STRANGERS)
        self.sent, self.sent_at = b"", 0.0

    async def start(self) -> None:
        """Listen. Raises port-in-use."""
        port, nodes = self.config.launcher_port, self.config.nnodes
        try:
            self.server = await listen(self.serve, None, port, FIRST_LIMIT, nodes, self.strangers)
        except OSError as error:
            reason = f"port {port} is in use on node 0 ({error.strerror})"
            raise Failure("port-in-use", reason) from None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until it ends."""
        coordinator, node = self.coordinator, None
        stream = LineStream(reader, writer, self.config.key, PURPOSE)
        self.strangers.add(writer)
        try:
            await asyncio.wait_for(stream.start(client=False), FIRST_TIMEOUT_S)
            status = STATUS.decode(await asyncio.wait_for(stream.readline(), FIRST_TIMEOUT_S))
            if not status:
                return
            node = Node(status, time.monotonic())
            if reason := coordinator.join(node, time.monotonic()):
                stream.write(encode(Orders(rejected=reason)))
                return
            self.strangers.discard(writer)
            reader._limit = LINE_LIMIT  # StreamReader has no public way to change it
            self.streams.add(stream)
            stream.write(encode(coordinator.orders))
            while line := await stream.readline():
                if status := STATUS.decode(line):
                    coordinator.hear(node, status, time.monotonic())
        except (asyncio.TimeoutError, asyncio.CancelledError, OSError, ValueError):
            pass  # a stranger, a line that was cut, or the end of the run
        finally:
            self.strangers.discard(writer)
            writer.close()
            if node:
                coordinator.leave(node)
            if not coordinator.orders.verdict:
                self.streams.discard(stream)

    def work(self, now: float) -> None:
        """Called often: send the orders if they have changed, and as a sign of life."""
        self.coordinator.decide(now)
        line = encode(self.coordinator.orders)
        if line != self.sent or now > self.sent_at + HEARTBEAT_S:
            self.sent, self.sent_at = line, now
            for stream in self.streams:
                if not stream.writer.is_closing():
                    stream.write(line)

    async def close(self, verdict: Failure | None) -> None:
        """Let every node read the verdict before this process ends, also those that only start."""
        coordinator, now = self.coordinator, time.monotonic()
        if verdict:
            coordinator.finish(verdict, now)
        if coordinator.orders.verdict:
            self.work(now)
        end = min(now + LINGER_S, coordinator.join_deadline + LATE_S)
        while coordinator.orders.verdict and not coordinator.started_at and time.monotonic() < end:
            if len(coordinator.joined) >= self.config.nnodes + self.config.spares:
                break
            await asyncio.sleep(RETRY_S)
        if self.config.spares and verdict and verdict.cause == "done":
            await asyncio.sleep(LINGER_S)  # the end of pod 0 is that of the Job
        self.server.close()
        for stream in self.streams:
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(stream.writer.drain(), 1)
                stream.writer.write_eof()


class Participant:
    """Sends `status`, and keeps the newest `orders`."""

    def __init__(self, config: LaunchConfig, status: Status):
        self.config, self.status = config, status
        self.address = ""  # of node 0
        self.orders = Orders()
        self.started_at = 0.0
        self.stream: LineStream | None = None
        self.heard_at = 0.0  # on the connection of now
        self.failure = ("connection-refused", "")  # of the last attempt to connect

    async def stay_connected(self, deadline: float) -> None:
        """Keep a connection to node 0. When it ends, it is made again; after the start, the run
        ends.
        """
        while not self.orders.verdict:
            self.status.join_s = deadline - time.monotonic()
            await self.connect(max(1.0, min(5.0, self.status.join_s)))
            if self.started_at:
                self.lose_node_0("node 0 closed the connection without a report")
            else:
                self.heard_at = 0.0
                await asyncio.sleep(RETRY_S)
                # Node 0 may have a new pod, or DNS may have returned the address of the last one.
                with contextlib.suppress(OSError, asyncio.TimeoutError):
                    self.address = await asyncio.wait_for(look_up(self.config.master_addr), 1)

    def not_joined(self) -> Failure:
        """Why the run has not started in time."""
        if self.status.info.problem:
            return self.status.info.problem
        timeout_s = self.config.join_timeout
        if self.heard_at:  # node 0 has this node's status, and decides nothing
            return Failure("node-missing", f"node 0 did not start the run within {timeout_s} s")
        cause, detail = self.failure
        port = self.config.launcher_port
        where = f"node 0 at {self.config.master_addr} ({self.address}) port {port}"
        return Failure(cause, f"{where}, for {timeout_s} s: {BY_KEY[cause].meaning}{detail}")

    async def connect(self, timeout_s: float) -> None:
        """One connection, until it ends."""
        port, writer = self.config.launcher_port, None
        try:
            connecting = asyncio.open_connection(self.address, port, limit=LINE_LIMIT)
            reader, writer = await asyncio.wait_for(connecting, timeout_s)
            stream = LineStream(reader, writer, self.config.key, PURPOSE)
            await asyncio.wait_for(stream.start(client=True), timeout_s)
            stream.write(encode(self.status))
            line = await asyncio.wait_for(stream.readline(), timeout_s)
            if not (reply := ORDERS.decode(line)):
                self.failure = classify_port_failure(line)
            elif reply.rejected:
                self.failure = ("other-run", f" ({reply.rejected})")
            else:
                self.stream = stream
            while self.stream and line:
                self.heard_at = time.monotonic()
                if orders := ORDERS.decode(line):
                    self.take(orders)
                line = await stream.readline()
        except (OSError, ValueError, asyncio.TimeoutError) as error:
            # The other run may have ended since, and its answer says more.
            if writer or self.failure[0] != "other-run":
                self.failure = classify_port_failure(error, connected=writer is not None)
        finally:
            self.stream = None
            if writer:
                writer.close()

    def take(self, orders: Orders) -> None:
        if not self.orders.verdict:
            self.orders = orders
        if orders.go:
            self.started_at = self.started_at or time.monotonic()

    def lose_node_0(self, reason: str) -> None:
        """The verdict of this node alone, which hears nothing of node 0."""
        ran_s = time.monotonic() - self.started_at
        self.take(Orders(verdict=bounded(Failure("node-lost", reason), self.orders.attempt, ran_s)))

    def check(self, now: float, deadline: float) -> None:
        """Called often: end the run if it has not started in time, or if node 0 is silent."""
        timeout_s = self.config.heartbeat_timeout
        if not self.started_at and now > deadline:
            self.take(Orders(verdict=self.not_joined()))
        elif self.started_at and now > self.heard_at + timeout_s:
            self.lose_node_0(f"node 0 sent no heartbeat for {timeout_s} s")

    def send(self, status: Status) -> None:
        if self.stream:
            with contextlib.suppress(OSError, RuntimeError):
                self.stream.write(encode(status))
