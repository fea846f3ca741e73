"""Coordinator on node 0: from what the nodes tell, and the clock, to the orders for all of them.

It opens no socket: network traffic is in server.py, and the choice of the cause in root_cause.py.
"""

from __future__ import annotations

import statistics

from gpuworker.launch import preflight, root_cause, stacks
from gpuworker.launch.config import LaunchConfig
from gpuworker.launch.failure_causes import Failure
from gpuworker.launch.protocol import (
    HEARTBEAT_S,
    STACKS_CHARS,
    NodeState,
    Orders,
    Status,
    first,
)
from gpuworker.launch.root_cause import Node
from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log

ASK_S = 10.0  # between two questions while all is well
ASK_AGAIN_S = 0.5  # while the answers do not decide
STACKS_S = 4.0  # for the stacks of all nodes
STOP_S = 2.0  # beyond the grace period
SPEED_S = 300.0  # between two lines about the speed of the ranks
SLOW = 1.2  # times the median time of a step


class Coordinator:
    """The only place that decides what all nodes do, and the verdict."""

    def __init__(self, config: LaunchConfig, join_deadline: float):
        self.config, self.join_deadline = config, join_deadline
        self.orders = Orders(attempt=config.attempt)
        self.joined: dict[int, Node] = {}  # by index
        # Of nodes and ranks, in the order of arrival.
        self.failures: dict[tuple[int, int | None], Failure] = {}
        self.started_at = self.failed_at = self.stopped_at = 0.0
        self.first_question = 0  # since a failure
        self.asked_at = self.speed_at = 0.0
        self.stacks_question = 0  # for the stacks of all ranks
        self.warning = ""  # while no rank makes progress
        self.steps: list[int] = []  # of all ranks, at the last line about their speed

    @property
    def nodes(self) -> list[Node]:
        return [self.joined[index] for index in sorted(self.joined)]

    # -- what the nodes tell

    def join(self, node: Node, now: float) -> str:
        """A new connection of a node. Returns why it cannot take part, if so."""
        other = self.joined.get(node.info.node)
        if node.status.run_id != self.config.run_id:
            # Never this run's id, which without a key is all that a message needs.
            return "belongs to another run"
        if node.info.node in self.orders.left_out:
            return ""  # its orders say so
        # A pod that restarted alone, and the others must, too; or the next launcher of its script.
        if self.started_at or (self.orders.verdict and other):
            return "has started, or has ended, without this launcher"
        lives = other and now < other.heard_at + 3 * HEARTBEAT_S
        if lives and other.info.pod != node.info.pod:
            both = f"{other.name} and {node.name}"
            self.finish(Failure("duplicate-node", f"{both} claim the same index"), now)
        self.joined[node.info.node], node.progress_at = node, now
        # No node waits longer than it was asked to.
        self.join_deadline = min(self.join_deadline, now + node.status.join_s)
        return ""

    def hear(self, node: Node, status: Status, now: float) -> None:
        """A node has told something."""
        node.heard_at = now
        if status.restarts == self.orders.restarts:  # not of the start before
            status.info.node = node.info.node
            node.status, node.progress_at = status, now - status.progress_age
            for failure in status.failures:
                key = node.info.node, failure.rank
                self.failures.setdefault(key, root_cause.named(node.name, failure))
            for report in status.reports:
                report.node = node.name
            node.reports = status.reports or node.reports
        # A node that is done is drained while the others still work.
        if status.stop and not self.stopped_at and status.state is not NodeState.DONE:
            self.stopped_at = now
            self.orders.stop = f"{node.name} got {status.stop}"
        if status.wants_stacks and not self.orders.frames:
            self.gather_stacks(now)

    def leave(self, node: Node) -> None:
        """Its connection has ended."""
        index, node.lost = node.info.node, node.lost or "closed the connection without a report"
        if self.joined.get(index) is node and not (self.orders.verdict or self.started_at):
            del self.joined[index]  # it may join again until the deadline

    def resume(self, now: float, frozen_s: float) -> None:
        """This process was frozen, so nothing could be heard."""
        for node in self.nodes:
            node.heard_at = now
        limit = self.config.heartbeat_timeout - 2 * HEARTBEAT_S
        if self.started_at and frozen_s > limit:  # since the last heartbeat it may be longer
            # The others have given node 0 up, and have closed their connections.
            reason = f"node 0 was frozen for {frozen_s:.1f} s"
            self.finish(Failure("node-lost", reason), now)

    # -- decisions

    def decide(self, now: float) -> None:
        if self.orders.verdict:
            return
        try:
            self.find_silent(now)
            done = all(node.status.state is NodeState.DONE for node in self.nodes)
            if self.orders.go and done:
                raise Failure("done")
            elif self.stopped_at:
                self.check_stop(now)
            elif self.orders.go:
                self.check_run(now)
            else:
                self.check_join(now)
        except Exception as error:  # a verdict, or invalid node info: else all nodes would wait
            self.finish(root_cause.of_error(error, "node 0: "), now)

    def finish(self, verdict: Failure, now: float) -> None:
        """The first verdict is the verdict of every node."""
        if not self.orders.verdict:
            ran_s = now - (self.started_at or now)
            self.orders.verdict = root_cause.bounded(verdict, self.config.attempt, ran_s)

    def find_silent(self, now: float) -> None:
        limit = self.config.heartbeat_timeout
        for node in self.nodes if self.started_at else ():
            if node.running and now - node.heard_at > limit:
                node.lost = node.lost or f"sent no heartbeat for {limit} s"

    def check_join(self, now: float) -> None:
        """Order the start once enough nodes have joined, and all match. Raises Failure."""
        config, nodes = self.config, self.nodes
        if lost := root_cause.node_lost(nodes):  # during a restart in place
            raise lost
        problems = [node.info.problem for node in nodes if node.info.problem]
        joined = [node for node in self.joined.values() if node.status.state is NodeState.JOINED]
        ready = [node.info for node in joined if not node.info.problem]  # in the order of arrival
        world = sorted(ready[: config.nnodes], key=lambda info: info.node)
        absent = {*range(config.nnodes + config.spares)} - {info.node for info in world}
        if len(world) == config.nnodes:
            preflight.compare(ready)
            for info in world if config.debug else []:
                log(Tag.DEBUG, **vars(info))
            self.joined = {info.node: self.joined[info.node] for info in world}
            self.started_at, self.asked_at = self.started_at or now, now
            self.orders.master = world[0].address if world[0].node else ""
            self.orders.left_out, self.orders.go = sorted(absent), True
        elif len(problems) > config.spares or (problems and now > self.join_deadline):
            raise Failure(problems[0].cause, first([each.reason for each in problems]))
        elif now > self.join_deadline:
            preflight.compare(ready)  # those that disagree about the size wait for others
            late = first([f"node {index}" for index in sorted(absent)])
            why = f"{late} did not join within {config.join_timeout} s"
            raise Failure("node-missing", f"{why}; {len(nodes)} of {config.nnodes} joined")

    def check_stop(self, now: float) -> None:
        # The grace period is over before this; a node that has told nothing has not saved.
        over = now > self.stopped_at + self.config.grace_period + STOP_S
        if over or all(node.status.failures or not node.running for node in self.nodes):
            # What went wrong before, or while saving, is the cause.
            failures = [each for each in self.failures.values() if not each.asked]
            known = root_cause.known(self.nodes, failures)
            raise known or root_cause.stopped(self.orders.stop, self.nodes)

    def check_run(self, now: float) -> None:
        """Decide whether the run has ended. Raises Failure."""
        nodes, config = self.nodes, self.config
        if self.orders.frames:
            self.show_stacks(now)
        if self.failures or root_cause.node_lost(nodes):
            if not self.failed_at:
                self.failed_at, self.asked_at = now, 0.0
                self.first_question = self.orders.question + 1
                for node in nodes:  # they may be old
                    node.reports = []
            if now > self.asked_at + ASK_AGAIN_S:
                self.ask(now)
            failures, asked = list(self.failures.values()), self.answered(self.first_question)
            verdict = root_cause.failed(nodes, failures, asked, now - self.failed_at, now)
            if verdict and not self.restart(verdict, now):
                raise verdict
        elif all(not node.running for node in nodes):  # with 0 or 75, on some node with 75
            raise root_cause.asked_for_restart(self.config, nodes)
        else:
            self.check_progress(now)
            # Often enough to see soon that a rank has left its main program.
            if now > self.asked_at + min(ASK_S, max(1.0, config.exit_timeout / 4)):
                self.ask(now)
            if now > self.speed_at + SPEED_S:
                self.log_speed(now)

    def restart(self, verdict: Failure, now: float) -> bool:
        """Start the program again in the same pods, if that is allowed and no node is lost."""
        orders, nodes = self.orders, self.nodes
        left = self.config.max_restarts_in_place - orders.restarts
        if any(node.lost for node in nodes) or left <= 0 or not verdict.row.restartable:
            return False
        orders.restarts, orders.go = orders.restarts + 1, False
        orders.restart_reason = f"{verdict.cause}: {verdict.reason}"
        self.join_deadline = now + self.config.join_timeout
        self.failed_at, self.failures = 0.0, {}
        for node in nodes:
            node.forget()
        return True

    def check_progress(self, now: float) -> None:
        """Compare the last progress of all nodes with the time-out: then end, or warn."""
        limit = self.config.progress_timeout
        limits = [node.progress_at + limit for node in self.nodes if node.running]
        if not limit or not limits or now < max(limits):
            self.warning = ""
            return
        reason = f"no rank made progress for {limit} s"
        if self.config.progress_action == "end":
            self.failures[-1, None] = Failure("no-progress", reason)
        elif not self.warning:
            self.warning = f"{reason}; the run goes on"
            self.gather_stacks(now)

    def log_speed(self, now: float) -> None:
        """Log step, steps per second and slow ranks, once all of them have made steps."""
        since_s, before = now - self.speed_at, self.steps
        self.steps = [report.steps for report in root_cause.all_reports(self.nodes)]
        self.speed_at, pairs = now, zip(before, self.steps, strict=False)
        made = {rank: new - old for rank, (old, new) in enumerate(pairs) if new > old}
        if made and len(before) == len(self.steps):
            median = statistics.median(made.values())
            slow = [str(rank) for rank, number in made.items() if number * SLOW < median]
            facts = {"slow_ranks": ",".join(slow[:8])} if slow else {}
            log(Tag.STEP, step=max(self.steps), steps_per_second=median / since_s, **facts)

    # -- questions

    def ask(self, now: float) -> None:
        """Ask every rank; a node answers the newest question only."""
        self.asked_at, self.orders.stacks = now, ""
        self.orders.question += 1

    def answered(self, question: int) -> bool:
        """Whether all have answered that can."""
        return all(node.lost or node.status.answered >= question for node in self.nodes)

    def gather_stacks(self, now: float) -> None:
        self.ask(now)
        self.stacks_question, self.orders.frames = self.orders.question, True

    def show_stacks(self, now: float) -> None:
        """Show the stacks once all nodes have answered, or some do not."""
        if self.answered(self.stacks_question) or now > self.asked_at + STACKS_S:
            self.orders.frames = False
            lines = stacks.table(root_cause.all_reports(self.nodes))
            self.orders.stacks = "\n".join(lines)[:STACKS_CHARS]
            if self.warning:
                log(Tag.DDP, phase="no progress", reason=self.warning)
                print(self.orders.stacks, flush=True)
