"""The launcher of one node: preflight, start of the ranks, supervision, restarts in place, the end.

On node 0 it also runs the coordinator, which decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace

from gpuworker.launch import node_test, preflight
from gpuworker.launch.command_line import TIMEOUTS
from gpuworker.launch.config import STOP_SIGNALS, LaunchConfig
from gpuworker.launch.connection import Participant, Server
from gpuworker.launch.coordinator import Coordinator
from gpuworker.launch.failure_causes import Failure
from gpuworker.launch.local_ranks import LocalRanks
from gpuworker.launch.output import Output
from gpuworker.launch.protocol import HEARTBEAT_S, NodeInfo, NodeState, Orders, Status
from gpuworker.launch.root_cause import LONG_RUN_S, named, of_error
from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log
from gpuworker.runtime.plain_files import replace_plain
from gpuworker.runtime.processes import adopt_orphans, child_pids, descendants, kill, reap

LOOK_S = 0.05
# Seconds that processes left behind by the ranks (an uploader) may take after a good and a bad run.
LEFTOVERS_S, LEFTOVERS_AFTER_FAILURE_S = 30, 6
FAILURES_TOLD = 64
CHILDREN_S = 2.0
WANTED, SHOWN = "stacks-wanted", "stacks"  # files of `ddp-launch stacks` in the working folder


class NodeLauncher:
    """The launcher of one node; on node 0 with the coordinator."""

    def __init__(self, config: LaunchConfig, started_at: float, output: Output):
        self.config, self.output = config, output
        pod = os.environ.get("POD_NAME") or os.uname().nodename
        info = NodeInfo(config.node_rank, pod, os.environ.get("NODE_NAME", ""))
        self.name, self.status = info.name, Status(config.run_id, info)
        self.participant = Participant(config, self.status)
        self.join_deadline = started_at + config.join_timeout
        self.server: Server | None = None
        self.ranks: LocalRanks | None = None
        self.ending = False
        self.phase_at = started_at
        self.shown = ""  # stacks
        self.tasks: dict[Callable, asyncio.Task] = {}
        self.stopped_early: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()

    def log_phase(self, name: str, **facts: object) -> None:
        now = time.monotonic()
        log(Tag.DDP, phase=name, **facts, seconds=now - self.phase_at)
        self.phase_at = now

    async def run(self) -> Failure:
        """Take part until the end, and return the verdict. Raises Failure."""
        config = self.config
        for number in STOP_SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup
            name = signal.Signals(number).name
            asyncio.get_running_loop().add_signal_handler(number, self.on_signal, name)
        adopt_orphans()
        timeouts = {f"{name}_s": getattr(config, name) for name in TIMEOUTS}
        master = f"{config.master_addr}:{config.master_port}"
        log(Tag.ENV, nnodes=config.nnodes, nproc_per_node=config.nproc_per_node, master=master,
            run_id=config.run_id, attempt=config.attempt, **timeouts)  # fmt: skip
        if config.node_rank == 0:
            server = Server(Coordinator(config, self.join_deadline))
            await server.start()
            self.server = server
        address = self.participant.address = await preflight.resolve(config, self.join_deadline)
        self.log_phase("resolve", master=config.master_addr, address=address)
        await self.prepare()
        self.do(self.participant.stay_connected, self.join_deadline)
        await self.follow_orders()
        return self.participant.orders.verdict or Failure("done")  # of a node that is left out

    async def prepare(self) -> None:
        """Check this node, and make the folder of its ranks."""
        config, info = self.config, self.status.info
        try:
            if config.problem:
                raise config.problem
            interface, own_address = preflight.choose_interface(config, self.participant.address)
            info.address = own_address
            self.log_phase("interface", interface=interface, address=own_address)
            # In a thread: the query for GPUs can take seconds, and on node 0 others connect.
            await asyncio.to_thread(preflight.complete, info, config, interface)
            if config.node_test != "off" and not self.ranks:  # no restart in place
                await asyncio.to_thread(node_test.run, config.node_test)
            self.ranks = LocalRanks(config, self.output)
        except Exception as error:  # it goes to node 0, so that no other node waits for this one
            info.problem = named(self.name, of_error(error))

    async def follow_orders(self) -> None:
        """Do what node 0 orders, until the end."""
        config, participant, status = self.config, self.participant, self.status
        looked_at, beat_at, told = time.monotonic(), 0.0, None
        while not participant.orders.verdict:
            orders, now = participant.orders, time.monotonic()
            frozen_s, looked_at = now - looked_at, now
            if frozen_s > 2 * HEARTBEAT_S:  # what others sent, perhaps the verdict, is not yet read
                participant.heard_at = participant.heard_at and now
                if self.server:
                    self.server.coordinator.resume(now, frozen_s)
            participant.check(now, self.join_deadline + 1)
            if self.server:
                self.server.work(now)
            if config.node_rank in orders.left_out:
                if not self.server:
                    self.log_phase("left out", unfit=bool(status.info.problem))
                    return
                orders = Orders()  # it only serves, to the end
            if orders.stop:
                self.stop(orders.stop)
            if orders.restarts > status.restarts:
                self.do(self.start_again, orders)
            elif orders.go and status.state is NodeState.JOINED and not status.failures:
                self.start(orders)
            if orders.question > status.answered:
                self.do(self.answer, orders)
            if orders.stacks != self.shown:
                self.show(orders.stacks)
            if now > beat_at + HEARTBEAT_S:
                beat_at, told = now, None
                self.look_around()
            self.refresh()
            if status != told:
                told = replace(status)
                participant.send(told)
            await asyncio.sleep(LOOK_S)

    def start(self, orders: Orders) -> None:
        """Start the ranks, with the address of rank 0's node."""
        config, status = self.config, self.status
        if not orders.restarts:
            self.log_phase("master ready, preflight", nodes=config.nnodes)
        try:
            address = orders.master or self.participant.address
            self.ranks.start(orders, address, status.info.interface)
        except OSError as error:  # a failure of this node, as if a rank had failed
            reason = f"{config.program[0]}: {error.strerror}"
            status.failures = [Failure("program-failed", reason)]
            return
        status.state, status.progress_age = NodeState.RUNNING, 0.0
        numbers = ",".join(str(rank.number) for rank in self.ranks.ranks)
        log(Tag.DDP, phase="ranks started", world=config.world_size, ranks=numbers)

    def refresh(self) -> None:
        """Bring this node's status up to date."""
        status, ranks = self.status, self.ranks
        if status.state is not NodeState.RUNNING:
            return
        ranks.look()
        status.state = ranks.final_state() or status.state
        status.progressed = ranks.stepped or time.monotonic() > ranks.started_at + LONG_RUN_S
        # What only follows from another failure comes last, if there is no room for all.
        found = sorted(ranks.failures(), key=lambda each: each.row.secondary)
        status.failures = found[:FAILURES_TOLD]

    def look_around(self) -> None:
        """Once a second: processes that have ended, progress, a request for stacks."""
        ranks, status = self.ranks, self.status
        if status.state is not NodeState.RUNNING:
            return
        reap(rank.pid for rank in ranks.ranks)
        status.progress_age = ranks.progress_age()
        with contextlib.suppress(OSError):
            (ranks.folder / WANTED).unlink()
            status.wants_stacks = True

    async def start_again(self, orders: Orders) -> None:
        """End the program, and check this node."""
        status, number = self.status, orders.restarts
        log(Tag.DDP, phase="restart in place", number=number, reason=orders.restart_reason)
        status.state = NodeState.JOINED
        await self.ranks.end("the program starts again")
        if not (status.stop or self.participant.orders.stop):
            await end_children()  # they may hold ports and GPUs
            self.ranks.close()
            await self.prepare()
        status.restarts, status.failures = number, []

    # -- signals and orders

    def do(self, work: Callable[..., Coroutine], *arguments: object) -> None:
        """Begin something, unless it is still being done."""
        if work not in self.tasks:
            self.tasks[work] = task = asyncio.create_task(work(*arguments))
            task.add_done_callback(lambda _: self.tasks.pop(work))

    def on_signal(self, name: str) -> None:
        """SIGTERM ends the run, because it ends this pod. Before the ranks run, only this pod."""
        if self.ending or self.stopped_early.done():
            return
        if not self.participant.started_at:
            reason = f"{self.name} got {name} before the ranks were started"
            self.stopped_early.set_result(Failure("stopped", reason))
        elif not (self.ranks and self.ranks.final_state() is NodeState.DONE):
            self.status.stop = name  # else node 0 waits for the others

    def stop(self, reason: str) -> None:
        """Ask the program to end, on all nodes, including the one that got the signal."""
        ranks, status = self.ranks, self.status
        if status.state is NodeState.JOINED and self.start_again not in self.tasks:
            status.state = NodeState.STOPPED
        if not ranks.stop_deadline:
            log(Tag.DDP, phase="stop", reason=reason)
            grace_s, loop = self.config.grace_period, asyncio.get_running_loop()
            ranks.stop_deadline = time.monotonic() + grace_s
            ranks.terminate(ranks.ranks)
            loop.call_later(grace_s, ranks.kill, ranks.ranks, "the grace period is over")

    async def answer(self, orders: Orders) -> None:
        reports = await self.ranks.ask(orders.frames)
        self.status.answered = orders.question
        self.refresh()
        self.participant.send(replace(self.status, reports=reports))

    def show(self, stacks: str) -> None:
        """The stacks of all ranks, to who wants them in this pod."""
        self.shown = stacks
        if stacks and self.status.wants_stacks:
            self.status.wants_stacks = False
            with contextlib.suppress(OSError):
                replace_plain(self.ranks.folder / SHOWN, stacks.encode(errors="replace"))

    async def close(self, verdict: Failure) -> None:
        """Send the verdict to the other nodes, end the ranks, and what they have left behind."""
        self.ending = True  # a SIGTERM from now on changes nothing
        if self.server:
            await self.server.close(None if self.stopped_early.done() else verdict)
        if self.ranks:  # a stop has had its grace period
            await self.ranks.end(f"the run has ended: {verdict.cause}")
        # After a failure they end: workers of a killed rank may hold a GPU of this machine.
        await children_end(LEFTOVERS_S if verdict.cause == "done" else LEFTOVERS_AFTER_FAILURE_S)
        if not verdict.row.wanted:
            await end_children()
        if self.ranks:
            self.ranks.close()


async def end_children() -> None:
    """End all that the ranks have left running: this process has adopted it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        kill(descendants(os.getpid()), number)
        await children_end(CHILDREN_S)


async def children_end(seconds: float) -> None:
    end = time.monotonic() + seconds
    while child_pids(os.getpid()) and time.monotonic() < end:
        reap()
        await asyncio.sleep(LOOK_S)
