"""Coordinator on node 0: collects node info, monitors heartbeats, broadcasts the run's verdict.

Every node, node 0 included, is a participant (participant.py); protocol.py has the messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from gpuworker.launch import node_info, protocol, root_cause, speed, stacks
from gpuworker.launch.config import LaunchConfig
from gpuworker.launch.failure_causes import Failure
from gpuworker.launch.network import check_port_free
from gpuworker.launch.root_cause import NodeStatus
from gpuworker.runtime.contract import Tag
from gpuworker.runtime.json_lines import LINE_LIMIT, encode
from gpuworker.runtime.line_server import Strangers, listen
from gpuworker.runtime.log import log
from gpuworker.runtime.message_auth import LineStream

HELLO_TIMEOUT_S, HELLO_LIMIT = 10, 1 << 15  # seconds, bytes
MAX_STRANGERS = 1024  # beside one per node: connections that have not sent a hello of this run yet
# How long the verdict is served to pods that start a little later than the one whose fault ended
# the run, and how long after the join deadline.
LINGER_S, LATE_S = 4, 1
ASK_AGAIN_S = 0.5  # while the answers do not decide
STACKS_S = 4.0  # for the stacks of all nodes


async def first_line(stream: LineStream) -> bytes:
    await stream.start(client=False)
    return await stream.readline()


class Coordinator:
    """Server for the participants of all nodes, and the only place that decides the verdict."""

    def __init__(self, config: LaunchConfig, join_deadline: float):
        self.config, self.join_deadline = config, join_deadline
        self.nodes: dict[int, NodeStatus] = {}
        # Two pods of one index, and since when.
        self.duplicate: tuple[NodeStatus, NodeStatus, float] | None = None
        self.lost: dict[int, str] = {}  # node index -> how it was lost during the run
        self.started_at = self.first_started_at = 0.0  # when Go was sent
        self.mismatch_since = self.failed_at = self.stopped_at = 0.0
        self.stop_reason = ""
        self.failed_before_stop: Failure | None = None
        # Numbers of the last question, and of the first since a failure.
        self.questions = self.first_question = 0
        self.asked_at = 0.0
        self.stacks_wanted: tuple[int, str] | None = None  # question, and why without a request
        self.restarts, self.warned_at = 0, 0.0
        self.speeds = speed.Speeds()
        self.verdict: Failure | None = None
        self.notified: set[int] = set()  # nodes that were sent the verdict
        self.strangers = Strangers(config.nnodes + MAX_STRANGERS)
        self.server: asyncio.Server | None = None
        self.monitoring: asyncio.Task | None = None

    async def serve(self) -> None:
        config = self.config
        try:
            self.server = await listen(
                self.handle_connection,
                None,
                config.launcher_port,
                HELLO_LIMIT,
                config.nnodes,
                self.strangers,
            )
        except OSError as error:
            reason = f"port {config.launcher_port} is in use on node 0 ({error.strerror})"
            raise Failure("port-in-use", reason, "preflight") from None
        check_port_free(config.master_port)
        self.monitoring = asyncio.create_task(self.monitor())

    async def handle_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        node = index = None
        self.strangers.add(writer)
        stream = LineStream(reader, writer, self.config.key, protocol.VERSION)
        try:
            hello = protocol.CODEC.decode(
                await asyncio.wait_for(first_line(stream), HELLO_TIMEOUT_S)
            )
            if not isinstance(hello, protocol.Hello) or hello.version != protocol.VERSION:
                return
            if hello.info.problem and hello.info.problem.cause == "done":  # it would end the run
                return
            if hello.run_id != self.config.run_id:
                stream.write(encode(protocol.Rejected("belongs to another run")))
                return
            self.strangers.discard(writer)
            reader._limit = LINE_LIMIT  # of a node; StreamReader has no public way to change it
            node, index = NodeStatus(hello.info, stream, time.monotonic()), hello.info.node
            node.info.clock_skew = node.info.clock - time.time()
            if self.verdict:
                stream.write(encode(protocol.End(self.verdict)))
                self.notified.add(index)
                return
            if self.started_at or self.restarting:
                # A pod that restarted alone; the others must restart, too.
                other = self.nodes.get(index)
                alone = not other or other.closed or other.info.pod == node.info.pod
                why = (
                    "without this node since its restart"
                    if alone
                    else f"with {other.info.pod} as node {index}"
                )
                stream.write(encode(protocol.Rejected(f"runs {why}")))
                return
            if index in self.nodes and self.nodes[index].info.pod != node.info.pod:
                self.duplicate = (self.nodes[index], node, time.monotonic())
            self.nodes[index] = node
            if node.info.problem:
                self.finish(node.info.problem)
            welcome = protocol.Welcome(self.missing())
            stream.write(encode(protocol.End(self.verdict) if self.verdict else welcome))
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
                elif node.state.running and not node.failures:
                    self.lost.setdefault(index, "closed the connection without a report")

    def on_message(self, node: NodeStatus, message: object) -> None:
        now = time.monotonic()
        if isinstance(message, Failure):
            if message.cause == "done":
                raise ValueError("not a failure")
            node.failures.setdefault(message.rank, (now, message))
            if not self.failed_at:
                self.failed_at, self.first_question = now, self.questions + 1
                self.ask()
        elif isinstance(message, protocol.Heartbeat):
            node.progress_at = now - message.progress_age
            node.steps = message.steps
        elif isinstance(message, protocol.Answer):
            node.answered = max(node.answered, message.number)
            node.reports |= {each.rank: each for each in message.reports()}
            if self.failed_at and message.number >= self.first_question:
                # An answer may overtake the node's own message about the failure of a rank.
                for each in node.reports.values():
                    if each.failure and not each.failure.asked:
                        self.on_message(node, each.failure)
        elif isinstance(message, protocol.StacksRequested):
            self.want_stacks("")
        elif isinstance(message, protocol.StopRequested) and not self.stopped_at:
            if node.state is protocol.NodeState.DONE:
                return  # its pod is drained, and the others still work
            self.stopped_at = now
            self.failed_before_stop = root_cause.known(self.nodes, self.lost)
            self.stop_reason = f"{node_info.format_node(node.info)} got {message.signal}"
            self.broadcast(protocol.Stop(self.stop_reason))
        elif isinstance(message, protocol.StateChange):
            node.state, node.progressed = message.state, message.progressed

    def ask(self, frames: bool = False) -> None:
        self.questions, self.asked_at = self.questions + 1, time.monotonic()
        frames = frames or bool(self.stacks_wanted)  # a node answers its newest question only
        self.broadcast(protocol.Question(self.questions, frames))

    def want_stacks(self, why: str) -> None:
        self.ask(frames=True)
        self.stacks_wanted = (self.questions, why)

    def send_stacks(self, now: float) -> None:
        """Show the stacks on every node once all have answered, or some do not."""
        question, why = self.stacks_wanted
        open_nodes = [node for node in self.nodes.values() if not node.closed]
        if all(node.answered >= question for node in open_nodes) or now > self.asked_at + STACKS_S:
            self.stacks_wanted = None
            text = stacks.whole(root_cause.all_reports(self.nodes))
            self.broadcast(protocol.Stacks(text, why))

    async def monitor(self) -> None:
        sent, checked = 0.0, time.monotonic()
        while not self.verdict:
            await asyncio.sleep(0.1)
            now = time.monotonic()
            # This process itself was frozen, so no heartbeat could be read.
            if now - checked > 2 * protocol.HEARTBEAT_S:
                for node in self.nodes.values():
                    node.last_heartbeat = now
            checked = now
            if now - sent > protocol.HEARTBEAT_S:
                sent = now
                self.broadcast(protocol.Heartbeat([] if self.started_at else self.missing()))
            try:
                self.check_run(now) if self.started_at else self.check_join(now)
            except Failure as verdict:
                self.finish(verdict)
            except Exception as error:  # invalid node info; without this task all nodes would wait
                self.finish(Failure("launcher-failed", f"node 0: {type(error).__name__}: {error}"))

    @property
    def restarting(self) -> bool:
        return self.restarts > 0 and not self.started_at

    def missing(self) -> list[int]:
        return [index for index in range(self.config.nnodes) if index not in self.nodes]

    def check_join(self, now: float) -> None:
        """Send Go once every node has joined and all match. Raises Failure."""
        config = self.config
        if self.restarting and self.stopped_at:
            over = now > self.stopped_at + config.timeouts["grace-period"] + 2
            if over or all(node.ended for node in self.nodes.values()):
                raise Failure(
                    "stopped",
                    f"{self.stop_reason}, while the program was starting again in place",
                    "run",
                )
            return
        if self.duplicate and now - self.duplicate[2] > 3 * protocol.HEARTBEAT_S:
            old, new, since = self.duplicate
            if old.last_heartbeat > since and new.last_heartbeat > since:
                both = " and ".join(node_info.format_node(node.info) for node in (old, new))
                raise Failure("duplicate-node", f"{both} claim the same index", "preflight")
            self.duplicate = None
        if self.restarting:
            self.find_silent(now)
        if self.lost:  # during a restart in place
            raise root_cause.node_lost(self.nodes, self.lost)
        for node in self.nodes.values():
            # The program's may come after a restart has begun.
            for _, failure in node.failures.values():
                if failure.phase == "preflight":
                    reason = root_cause.format_failure(node, failure)
                    raise Failure(failure.cause, reason, "preflight")
        joined = [self.nodes[index].info for index in sorted(self.nodes)]
        # Nodes that disagree about the size may never be complete; a moment later most of those
        # that start have joined.
        if any(
            (n.nnodes, n.nproc_per_node) != (config.nnodes, config.nproc_per_node) for n in joined
        ):
            self.mismatch_since = self.mismatch_since or now
            if now > self.mismatch_since + 2 * protocol.HEARTBEAT_S:
                node_info.compare(config, joined)
        late = [
            index for index in sorted(self.nodes)
            if self.nodes[index].state is not protocol.NodeState.JOINED
        ]  # fmt: skip
        if not self.missing() and not self.duplicate and not late:
            node_info.compare(config, joined)
            self.started_at = now
            self.first_started_at = self.first_started_at or now
            for info in joined if config.debug else []:
                log(Tag.DEBUG, **vars(info))
            self.failed_at = 0.0
            for node in self.nodes.values():
                node.forget(now)
            addresses = sorted({info.ip for info in joined if info.ip})
            self.broadcast(protocol.Go(config.attempt, self.restarts, addresses))
        elif now > self.join_deadline:
            missing = self.missing()
            names = ", ".join(f"node {index}" for index in (missing or late)[:20])
            names += ", …" if len(missing or late) > 20 else ""
            timeout_s = config.timeouts["join-timeout"]
            number = f"{len(joined)} of {config.nnodes}"
            reason = f"{names} did not join within {timeout_s} s; {number} joined"
            if not missing:
                reason = f"{names} did not end the program for its restart within {timeout_s} s"
            raise Failure("node-missing", reason, "preflight")

    def check_run(self, now: float) -> None:
        """Decide whether the run has ended. Raises Failure."""
        self.find_silent(now)
        states = {node.state for node in self.nodes.values() if not node.failures}
        failing = any(node.failures for node in self.nodes.values())
        if self.stacks_wanted:
            self.send_stacks(now)
        if states == {protocol.NodeState.DONE} and not failing:
            self.finish(Failure("done"))
        elif self.stopped_at:
            # The grace period is over before this; a node that has sent nothing has not saved.
            over = now > self.stopped_at + self.config.timeouts["grace-period"] + 2
            if over or all(node.ended or node.failures for node in self.nodes.values()):
                stopped = root_cause.stopped(self.stop_reason, self.nodes, self.lost)
                raise self.failed_before_stop or stopped
        elif failing or self.lost:
            if not self.failed_at:
                self.failed_at, self.first_question = now, self.questions + 1
            if now > self.asked_at + ASK_AGAIN_S:
                self.ask()
            verdict = root_cause.failed(self.nodes, self.lost, self.failed_at, self.first_question)
            if verdict and not self.restart(verdict, now):
                raise verdict
        elif all(not state.running for state in states):  # with 0 or 75, on some node with 75
            self.finish(root_cause.asked_for_restart(self.config, self.nodes))
        else:
            self.check_progress(now)
            if line := self.speeds.line(self.nodes.values(), now):
                log(Tag.STEP, **line)

    def find_silent(self, now: float) -> None:
        limit = self.config.timeouts["heartbeat-timeout"]
        for index, node in self.nodes.items():
            if node.state.running and now - node.last_heartbeat > limit:
                self.lost.setdefault(index, f"sent no heartbeat for {limit} s")

    def check_progress(self, now: float) -> None:
        """Compare the last progress of all nodes with the time-out: then end, or warn."""
        limit = self.config.timeouts["progress-timeout"]
        running = [node for node in self.nodes.values() if node.state.running]
        if not limit or not running or now < max(node.progress_at for node in running) + limit:
            self.warned_at = 0.0
            return
        if self.config.progress_action == "warn":
            if not self.warned_at:
                self.want_stacks(f"no rank made progress for {limit} s; the run goes on")
        elif not self.warned_at:
            self.first_question = self.questions + 1
            self.ask()
        elif all(node.answered >= self.first_question for node in running) or (
            now > self.warned_at + root_cause.ANSWERS_S
        ):
            places = root_cause.format_places(self.nodes)
            raise Failure("no-progress", f"no rank made progress for {limit} s: {places}")
        self.warned_at = self.warned_at or now

    def restart(self, verdict: Failure, now: float) -> bool:
        """Start the program again in the same pods, if that is allowed and no node is lost."""
        if self.lost or any(node.closed for node in self.nodes.values()):
            return False
        if self.restarts >= self.config.max_restarts_in_place or not verdict.row.restartable:
            return False
        self.restarts += 1
        self.started_at = 0.0
        self.join_deadline = now + self.config.timeouts["join-timeout"]
        for node in self.nodes.values():
            node.forget(now)
        self.broadcast(protocol.Restart(self.restarts, f"{verdict.cause}: {verdict.reason}"))
        return True

    def broadcast(self, message: object) -> None:
        displaced = [self.duplicate[0]] if self.duplicate else []
        for node in [*self.nodes.values(), *displaced]:
            if node.closed:
                continue
            with contextlib.suppress(OSError, RuntimeError):  # its connection is closed
                node.stream.write(encode(message))

    def finish(self, verdict: Failure) -> None:
        """The first verdict is the verdict of every node."""
        if not self.verdict:
            ran_s = time.monotonic() - self.first_started_at
            self.verdict = root_cause.bounded(verdict, self.config.attempt, ran_s)
            self.notified = set(self.nodes)
            self.broadcast(protocol.End(self.verdict))

    async def close(self) -> None:
        """Let every node read the verdict before this process ends, also those that only start."""
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
