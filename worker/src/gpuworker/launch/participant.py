"""Participant: a node's connection to node 0, which has the coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import time

from gpuworker.launch.config import LaunchConfig
from gpuworker.launch.failure_causes import Failure
from gpuworker.launch.network import classify_port_failure, look_up
from gpuworker.launch.protocol import CODEC, HEARTBEAT_S, PURPOSE, Orders, Status, first
from gpuworker.launch.root_cause import bounded
from gpuworker.runtime.json_lines import LINE_LIMIT, encode
from gpuworker.runtime.message_auth import LineStream

RETRY_S = 0.3
LAST_MESSAGE_S = 1.0  # for another task to deliver it, when the connection has ended


class Participant:
    """Sends `status`, and keeps the newest `orders`."""

    def __init__(self, config: LaunchConfig, status: Status, address: str):
        self.config, self.status, self.address = config, status, address
        self.orders = Orders()
        self.started_at, self.checked_at = 0.0, time.monotonic()
        self.stream: LineStream | None = None
        self.heard_at = 0.0  # on the connection of now
        self.failure = ("connection-refused", "was not reached")  # of the last attempt to connect

    @property
    def ended(self) -> bool:
        return self.orders.done or self.orders.verdict is not None

    async def stay_connected(self, deadline: float) -> None:
        """Keep a connection to node 0. When it ends, it is made again; after the start, the run
        ends.
        """
        while not self.ended:
            await self.connect(max(1.0, min(5.0, deadline - time.monotonic())))
            if self.started_at:
                await asyncio.sleep(LAST_MESSAGE_S)
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
        timeout_s = self.config.timeouts["join-timeout"]
        if self.heard_at:  # node 0 has this node's status, and others are missing
            names = first([f"node {index}" for index in self.orders.missing]) or "node 0"
            return Failure("node-missing", f"{names} did not join within {timeout_s} s")
        cause, detail = self.failure
        port = self.config.launcher_port
        where = f"node 0 at {self.config.master_addr} ({self.address}) port {port}"
        return Failure(cause, f"{where} {detail}, for {timeout_s} s")

    async def connect(self, timeout_s: float) -> None:
        """One connection, until it ends."""
        port, writer = self.config.launcher_port, None
        try:
            connecting = asyncio.open_connection(self.address, port, limit=LINE_LIMIT)
            reader, writer = await asyncio.wait_for(connecting, timeout_s)
            stream = LineStream(reader, writer, self.config.key, PURPOSE)
            line = await asyncio.wait_for(self.first_reply(stream), timeout_s)
        except (OSError, ValueError, asyncio.TimeoutError) as error:
            # The other run may have ended since, and its answer says more.
            if writer or self.failure[0] != "other-run":
                self.failure = classify_port_failure(error, connected=writer is not None)
            if writer:
                writer.close()
            return
        try:
            if not isinstance(reply := CODEC.decode(line), Orders):
                self.failure = classify_port_failure(line)
            elif reply.rejected:
                self.failure = ("other-run", reply.rejected)
            else:
                await self.follow(stream, reply)
        finally:
            self.stream = None
            writer.close()

    async def first_reply(self, stream: LineStream) -> bytes:
        await stream.start(client=True)
        stream.write(encode(self.status))
        return await stream.readline()

    async def follow(self, stream: LineStream, first: Orders) -> None:
        """Take orders until the connection ends."""
        self.stream, self.heard_at = stream, time.monotonic()
        self.take(first)
        with contextlib.suppress(OSError, ValueError):
            while line := await stream.readline():
                self.heard_at = time.monotonic()
                if isinstance(orders := CODEC.decode(line), Orders):
                    self.take(orders)

    def take(self, orders: Orders) -> None:
        if not self.ended:
            self.orders = orders
        if orders.go:
            self.started_at = self.started_at or time.monotonic()

    def end(self, verdict: Failure) -> None:
        """The verdict of this node alone, which hears nothing of node 0."""
        if not self.ended:
            self.orders.verdict = verdict

    def lose_node_0(self, reason: str) -> None:
        end, ran_s = Failure("node-lost", reason), time.monotonic() - self.started_at
        self.end(bounded(end, self.orders.attempt, ran_s))

    def check(self, now: float, deadline: float) -> None:
        """Called often: end the run if it has not started in time, or if node 0 is silent."""
        if now > self.checked_at + 2 * HEARTBEAT_S:
            # This process was frozen: what node 0 sent, perhaps the verdict, is not yet read.
            self.heard_at = self.heard_at and now
        self.checked_at, timeout_s = now, self.config.timeouts["heartbeat-timeout"]
        if not self.started_at and now > deadline:
            self.end(self.not_joined())
        elif self.started_at and now > self.heard_at + timeout_s:
            reason = f"node 0 sent no heartbeat for {timeout_s} s"
            # A frozen node 0 reads this when it goes on; else it would see only our end.
            self.status.failures = [*self.status.failures, Failure("node-lost", reason)]
            self.send(self.status)
            self.lose_node_0(reason)

    def send(self, status: Status) -> None:
        if self.stream:
            with contextlib.suppress(OSError, RuntimeError):
                self.stream.write(encode(status))
