"""Coordinator on node 0: collects node info, monitors heartbeats and broadcasts the verdict of the run.

Every node, node 0 included, is a participant (participant.py); protocol.py has the messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time

from gpuworker.launch import node_info, protocol, root_cause
from gpuworker.launch.config import LaunchConfig
from gpuworker.launch.failure_causes import BY_KEY, Verdict
from gpuworker.launch.network import check_port_free
from gpuworker.launch.root_cause import NodeStatus
from gpuworker.runtime.contract import Tag
from gpuworker.runtime.json_lines import LINE_LIMIT, encode
from gpuworker.runtime.line_server import Strangers, listen
from gpuworker.runtime.log import log
from gpuworker.runtime.message_auth import LineStream

HELLO_TIMEOUT_S, HELLO_LIMIT = 10, 1 << 15  # seconds, bytes
MAX_STRANGERS = 1024  # beside one per node: connections that have not sent a hello of this run yet
# How long the verdict is served to pods that start a little later than the one whose fault ended the run, and how long
# after the join deadline.
LINGER_S, LATE_S = 4, 1


async def first_line(stream: LineStream) -> bytes:
    await stream.start(client=False)
    return await stream.readline()


class Coordinator:
    """Server for the participants of all nodes, and the only place where the verdict of the run is decided."""

    def __init__(self, config: LaunchConfig, join_deadline: float):
        self.config, self.join_deadline = config, join_deadline
        self.nodes: dict[int, NodeStatus] = {}
        self.compared: list[str] = []  # pods
        self.duplicate: tuple[NodeStatus, NodeStatus, float] | None = None  # two pods of one index, since when
        self.lost: dict[int, str] = {}  # node index -> how it was lost during the run
        self.started_at = self.first_started_at = 0.0  # when Go was sent
        self.mismatch_since = self.failed_at = self.stopped_at = 0.0
        self.stop_reason, self.stacks_requested = "", False
        self.failed_before_stop: Verdict | None = None
        self.restarts, self.restarting, self.warned_at = 0, False, 0.0
        self.verdict: protocol.End | None = None
        self.notified: set[int] = set()  # nodes that were sent the verdict
        self.strangers = Strangers(config.nnodes + MAX_STRANGERS)
        self.server: asyncio.Server | None = None
        self.monitoring: asyncio.Task | None = None

    async def serve(self) -> None:
        config = self.config
        try:
            self.server = await listen(
                self.handle_connection, None, config.launcher_port, HELLO_LIMIT, config.nnodes, self.strangers
            )
        except OSError as error:
            reason = f"port {config.launcher_port} is in use on node 0 ({error.strerror})"
            raise Verdict("port-in-use", reason, "preflight") from None
        if config.backend != "etcd":
            check_port_free(config.master_port)
        self.monitoring = asyncio.create_task(self.monitor())

    async def handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        node = index = None
        self.strangers.add(writer)
        stream = LineStream(reader, writer, self.config.key, protocol.VERSION)
        try:
            hello = protocol.CODEC.decode(await asyncio.wait_for(first_line(stream), HELLO_TIMEOUT_S))
            if not isinstance(hello, protocol.Hello) or hello.version != protocol.VERSION:
                return
            if hello.info.problem and hello.info.problem.cause not in BY_KEY:  # not even "done": it would end the run
                return
            if hello.run_id != self.config.run_id:
                stream.write(encode(protocol.Rejected("belongs to another run")))
                return
            self.strangers.discard(writer)
            reader._limit = LINE_LIMIT  # of a node; StreamReader has no public way to change it
            node, index = NodeStatus(hello.info, stream, time.monotonic()), hello.info.node
            node.info.clock_skew = node.info.clock - time.time()
            if self.verdict:
                stream.write(encode(self.verdict))
                self.notified.add(index)
                return
            if self.started_at or self.restarting:  # a pod that restarted alone; the others must restart, too
                other = self.nodes.get(index)
                alone = not other or other.closed or other.info.pod == node.info.pod
                why = "without this node since its restart" if alone else f"with {other.info.pod} as node {index}"
                stream.write(encode(protocol.Rejected(f"runs {why}")))
                return
            if index in self.nodes and self.nodes[index].info.pod != node.info.pod:
                self.duplicate = (self.nodes[index], node, time.monotonic())
            self.nodes[index] = node
            if node.info.problem:
                self.finish(node.info.problem)
            stream.write(encode(self.verdict or protocol.Welcome(self.missing())))
            while line := await stream.readline():
                node.last_heartbeat = time.monotonic()
                self.on_message(node, protocol.CODEC.decode(line))
        except (asyncio.TimeoutError, asyncio.CancelledError, OSError, ValueError):
            pass  # a stranger, a line that was cut, or the end of the run
        finally:
            self.strangers.discard(writer)
            writer.close()
            if node:
                node.closed = True
            if node and self.nodes.get(index) is node and not self.verdict:
                if not self.started_at and not self.restarting:
                    del self.nodes[index]  # it may join again until the deadline
                elif node.state.running and not node.failure:
                    self.lost.setdefault(index, "closed the connection without a report")

    def on_message(self, node: NodeStatus, message: object) -> None:
        if isinstance(message, protocol.RankFailure):
            if message.cause not in BY_KEY:
                raise ValueError("a cause that is not in the table")
            better = not node.failure or BY_KEY[node.failure.cause].secondary > BY_KEY[message.cause].secondary
            if better or message.phase == "preflight":
                node.failure, node.failed_at = message, time.monotonic()
            self.failed_at = self.failed_at or time.monotonic()
            self.request_stacks()
        elif isinstance(message, protocol.HangSuspected):
            self.request_stacks()
        elif isinstance(message, protocol.Heartbeat):
            node.progress_at = time.monotonic() - message.progress_age
        elif isinstance(message, protocol.Stacks):
            node.stacks |= message.ranks
            node.sequences |= message.sequences
        elif isinstance(message, protocol.StopRequested) and not self.stopped_at:
            self.stopped_at = time.monotonic()
            self.failed_before_stop = root_cause.known(self.nodes, self.lost)
            self.stop_reason = f"{node_info.format_node(node.info)} got {message.signal}"
            self.broadcast(protocol.Stop(self.stop_reason))
        elif isinstance(message, protocol.StateChange):
            node.state, node.progressed = message.state, message.progressed

    def request_stacks(self, reason: str = "") -> None:
        if not self.stacks_requested:
            self.stacks_requested = True
            self.broadcast(protocol.StackRequest(reason))

    async def monitor(self) -> None:
        sent, checked = 0.0, time.monotonic()
        while not self.verdict:
            await asyncio.sleep(0.1)
            now = time.monotonic()
            # This process itself was frozen, so no heartbeat could be read.
            if now - checked > 5 * protocol.HEARTBEAT_S:
                for node in self.nodes.values():
                    node.last_heartbeat = now
            checked = now
            if now - sent > protocol.HEARTBEAT_S:
                sent = now
                self.broadcast(protocol.Heartbeat([] if self.started_at else self.missing()))
            try:
                self.check_run(now) if self.started_at else self.check_join(now)
            except Verdict as verdict:
                self.finish(verdict.message())
            except Exception as error:  # invalid node info; without this task all nodes would wait
                self.finish(Verdict("launcher-failed", f"node 0: {type(error).__name__}: {error}").message())

    def missing(self) -> list[int]:
        return [index for index in range(self.config.nnodes) if index not in self.nodes]

    def check_join(self, now: float) -> None:
        """Send Go once every node has joined and all match. Raises Verdict."""
        config = self.config
        if self.restarting and self.stopped_at:
            over = now > self.stopped_at + config.timeouts["grace-period"] + 2
            if over or all(node.state is not protocol.NodeState.JOINED for node in self.nodes.values()):
                raise Verdict("stopped", f"{self.stop_reason}, while the program was starting again in place", "run")
            return
        if self.duplicate and now - self.duplicate[2] > 3 * protocol.HEARTBEAT_S:
            old, new, since = self.duplicate
            if old.last_heartbeat > since and new.last_heartbeat > since:
                both = " and ".join(node_info.format_node(node.info) for node in (old, new))
                raise Verdict("duplicate-node", f"{both} claim the same index", "preflight")
            self.duplicate = None
        if self.restarting:
            self.find_silent(now)
        if self.lost:  # during a restart in place
            raise root_cause.node_lost(self.nodes, self.lost)
        for node in self.nodes.values():  # not of the program, whose last report may come after a restart has begun
            if node.failure and node.failure.phase == "preflight":
                raise Verdict(node.failure.cause, root_cause.format_failure(node), "preflight")
        joined = [self.nodes[index].info for index in sorted(self.nodes)]
        # Nodes that disagree about the size may never be complete; a moment later most of those that start have joined.
        if any((n.nnodes, n.nproc_per_node) != (config.nnodes, config.nproc_per_node) for n in joined):
            self.mismatch_since = self.mismatch_since or now
            if now > self.mismatch_since + 2 * protocol.HEARTBEAT_S:
                node_info.compare(config, joined)
        late = [index for index, node in sorted(self.nodes.items()) if node.state is not protocol.NodeState.READY]
        if not self.missing() and not self.duplicate and (self.restarting or self.compare_once(joined)) and not late:
            self.started_at, self.restarting = now, False
            self.first_started_at = self.first_started_at or now
            for info in joined if config.debug else []:
                log(Tag.DEBUG, **vars(info))
            rendezvous_id = f"{config.run_id}-{config.attempt}-{secrets.token_hex(4)}"
            self.failed_at, self.stacks_requested = 0.0, False
            for node in self.nodes.values():
                node.progress_at, node.failure = now, None
            self.broadcast(protocol.Go(rendezvous_id, config.attempt))
        elif now > self.join_deadline:
            missing = self.missing()
            names = ", ".join(f"node {index}" for index in (missing or late)[:20])
            names += ", …" if len(missing or late) > 20 else ""
            timeout_s = config.timeouts["join-timeout"]
            reason = f"{names} did not join within {timeout_s} s; {len(joined)} of {config.nnodes} joined"
            if not missing:
                reason = f"{names} joined, and did not finish importing torch within {timeout_s} s"
            raise Verdict("node-missing", reason, "preflight")

    def compare_once(self, joined: list[protocol.NodeInfo]) -> bool:
        """Compare complete nodes; once is enough, until another pod joins. Raises Verdict."""
        pods = [info.pod for info in joined]
        if self.compared != pods:
            node_info.compare(self.config, joined)
            self.compared = pods
        return True

    def check_run(self, now: float) -> None:
        """Decide whether the run has ended. Raises Verdict."""
        timeouts = self.config.timeouts
        self.find_silent(now)
        states = {protocol.NodeState.STOPPED if node.failure else node.state for node in self.nodes.values()}
        if states == {protocol.NodeState.DONE}:
            self.finish(protocol.End("done", phase="run"))
        elif self.stopped_at:
            # The programs' grace period is over before this; a node that has sent nothing by then has not saved.
            over = now > self.stopped_at + timeouts["grace-period"] + 2
            if over or not any(state.running for state in states):
                raise self.failed_before_stop or root_cause.stopped(self.stop_reason, self.nodes)
        elif self.failed_at or self.lost:
            self.failed_at = self.failed_at or now
            verdict = root_cause.failed(self.nodes, self.lost, now - self.failed_at, now)
            if verdict and not self.restart(verdict, now):
                raise verdict
        elif all(not state.running for state in states):  # every rank ended with 0 or 75, on some node with 75
            self.finish(root_cause.asked_for_restart(self.config, self.nodes).message())
        else:
            self.check_rendezvous(now)
            self.check_progress(now)

    def find_silent(self, now: float) -> None:
        limit = self.config.timeouts["heartbeat-timeout"]
        for index, node in self.nodes.items():
            if node.state.running and now - node.last_heartbeat > limit:
                self.lost.setdefault(index, f"sent no heartbeat for {limit} s")

    def check_rendezvous(self, now: float) -> None:
        """Compare torchrun's rendezvous with its time-out. Raises Verdict."""
        limit = self.config.timeouts["rendezvous-timeout"]
        late = [node for node in self.nodes.values() if node.state is protocol.NodeState.READY]
        if late and now > self.started_at + limit:
            names = ", ".join(node_info.format_node(node.info) for node in late[:8])
            raise Verdict("world-not-formed", f"{names} formed no world within {limit} s", "rendezvous")

    def check_progress(self, now: float) -> None:
        """Compare the last progress of all nodes with the time-out: then end, or warn. Raises Verdict."""
        limit = self.config.timeouts["progress-timeout"]
        running = [node for node in self.nodes.values() if node.state.running]
        if not limit or not running or now < max(node.progress_at for node in running) + limit:
            self.warned_at = 0.0
            return
        if not self.warned_at:
            self.warned_at, self.stacks_requested = now, False
            ends = self.config.progress_action == "end"
            self.request_stacks("" if ends else f"no rank made progress for {limit} s; the run goes on")
        elif self.config.progress_action == "end" and now > self.warned_at + root_cause.SETTLE_S:
            reason = f"no rank made progress for {limit} s: {root_cause.format_locations(self.nodes)}"
            raise Verdict("no-progress", reason, "run")

    def restart(self, verdict: Verdict, now: float) -> bool:
        """Start the program again in the same pods, if the configuration allows it and no node is lost."""
        if self.lost or any(node.closed for node in self.nodes.values()):
            return False
        if self.restarts >= self.config.max_restarts_in_place or not verdict.cause.restartable:
            return False
        self.restarts += 1
        self.restarting, self.started_at = True, 0.0
        self.join_deadline = now + self.config.timeouts["join-timeout"]
        for node in self.nodes.values():
            node.state, node.failure, node.failed_at = protocol.NodeState.JOINED, None, 0.0
            node.stacks, node.sequences = {}, {}
        self.broadcast(protocol.Restart(self.restarts, f"{verdict.cause.key}: {verdict.reason}"))
        return True

    def broadcast(self, message: object) -> None:
        displaced = [self.duplicate[0]] if self.duplicate else []
        for node in [*self.nodes.values(), *displaced]:
            if node.closed:
                continue
            with contextlib.suppress(OSError, RuntimeError):  # its connection is closed
                node.stream.write(encode(message))

    def finish(self, verdict: protocol.End) -> None:
        """The first verdict is the verdict of every node."""
        if not self.verdict:
            ran_s = time.monotonic() - self.first_started_at
            self.verdict = root_cause.bounded(verdict, self.config.attempt, ran_s)
            self.notified = set(self.nodes)
            self.broadcast(self.verdict)

    async def close(self) -> None:
        """Let every node read the verdict before this process ends, also nodes that are only starting."""
        end = min(time.monotonic() + LINGER_S, self.join_deadline + LATE_S)
        while self.verdict and not self.started_at and len(self.notified) < self.config.nnodes:
            if time.monotonic() > end:
                break
            await asyncio.sleep(0.1)
        if self.server:
            self.server.close()
        if self.monitoring:
            self.monitoring.cancel()
        for node in list(self.nodes.values()):
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(node.stream.writer.drain(), 1)
                node.stream.writer.write_eof()
