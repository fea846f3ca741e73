"""The launcher of one node: preflight, start of the ranks, supervision, restarts in place, the end.

On node 0 it also runs the coordinator, which decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import time
from pathlib import Path

from gpuworker.launch import network, node_info
from gpuworker.launch.config import STOP_SIGNALS, LaunchConfig
from gpuworker.launch.coordinator import Coordinator
from gpuworker.launch.failure_causes import Failure
from gpuworker.launch.local_ranks import LocalRanks
from gpuworker.launch.output import Output
from gpuworker.launch.participant import Participant
from gpuworker.launch.protocol import (
    Answer,
    Go,
    Heartbeat,
    NodeInfo,
    NodeState,
    Question,
    Restart,
    Stacks,
    StacksRequested,
    StateChange,
    Stop,
    StopRequested,
)
from gpuworker.launch.root_cause import LONG_RUN_S
from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log
from gpuworker.runtime.processes import adopt_orphans, child_pids, descendants, kill, reap, state

LOOK_S = 0.05
ASK_S = 10.0  # between two questions to the ranks of this node while all is well
HOOKS_S = 30.0  # after which a rank that cannot answer is named
# Seconds that processes left behind by the ranks (an uploader) may take after a good and a bad run.
LEFTOVERS_S, LEFTOVERS_AFTER_FAILURE_S = 30, 10
WANTED, SHOWN = "stacks-wanted", "stacks"  # files of `ddp-launch stacks` in the working folder


class NodeLauncher:
    """The launcher of one node; on node 0 with the coordinator."""

    def __init__(self, config: LaunchConfig, started_at: float, output: Output):
        self.config, self.started_at, self.output = config, started_at, output
        self.join_deadline = started_at + config.timeouts["join-timeout"]
        self.coordinator: Coordinator | None = None
        self.participant: Participant | None = None
        self.ranks: LocalRanks | None = None
        self.restart: Restart | None = None  # requested by the coordinator
        self.question: Question | None = None  # to which the answer has not been sent
        self.ending = False
        self.stop_reason = ""
        self.asked_at = 0.0
        self.tasks: set[asyncio.Task] = set()
        self.stopped_early: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def log_phase(self, name: str, since: float, **facts: object) -> float:
        now = time.monotonic()
        log(Tag.DDP, phase=name, **facts, seconds=now - since)
        return now

    async def run(self) -> None:
        """Return when every node is done. Raises Failure otherwise."""
        config, now = self.config, self.started_at
        for number in STOP_SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup
            name = signal.Signals(number).name
            asyncio.get_running_loop().add_signal_handler(number, self.on_signal, name)
        adopt_orphans()
        timeouts = {f"{name.replace('-', '_')}_s": s for name, s in config.timeouts.items()}
        master = f"{config.master_addr}:{config.master_port}"
        log(Tag.ENV, nnodes=config.nnodes, nproc_per_node=config.nproc_per_node, master=master,
            run_id=config.run_id, attempt=config.attempt, **timeouts)  # fmt: skip
        if config.node_rank == 0:
            self.coordinator = Coordinator(config, self.join_deadline)
            await self.coordinator.serve()
        address = await network.resolve(config, self.join_deadline)
        now = self.log_phase("resolve", now, master=config.master_addr, address=address)
        info = node_info.describe_self()
        info.node = config.node_rank
        try:
            if config.problem:
                raise config.problem
            interface, own_address = network.choose_interface(config, address)
            now = self.log_phase("interface", now, interface=interface, address=own_address)
            info = await self.prepare(interface, own_address)
        except Exception as error:
            # It goes to node 0, so that no other node waits for this one.
            info.problem = node_info.failure_here(error, "preflight")
        go = await self.join(info, address)
        now = self.log_phase("master ready, preflight", now, nodes=config.nnodes)
        while not self.ending:
            self.start(go)
            if not await self.supervise():
                return
            go = await self.start_again()

    async def prepare(self, interface: str, address: str) -> NodeInfo:
        """Check this node, and make the folder of its ranks. Raises Failure or OSError."""
        # In a thread: the query for GPUs can take seconds, and on node 0 others connect.
        info = await asyncio.to_thread(node_info.collect, self.config, interface, address)
        node_info.check_self(self.config, info)
        self.ranks = LocalRanks(self.config, self.output)
        return info

    def start(self, go: Go) -> None:
        """Start the ranks. A program that cannot be started is a failure of this node."""
        try:
            # The address where the coordinator was reached.
            self.ranks.start(go, self.participant.address, self.participant.info.interface)
        except OSError as error:
            reason = f"{self.config.program[0]}: {error.strerror}"
            self.participant.send(Failure("program-failed", reason))
            return
        self.asked_at = time.monotonic()
        self.participant.heartbeat = self.heartbeat
        self.participant.send(StateChange(NodeState.RUNNING))
        numbers = ",".join(str(rank.number) for rank in self.ranks.ranks)
        log(Tag.DDP, phase="ranks started", world=self.config.world_size, ranks=numbers)
        if self.config.debug:
            log(Tag.DEBUG, program=" ".join(self.config.program))
        if self.stop_reason:  # the stop came between Go and the ranks' start
            self.stop_ranks()

    async def join(self, info: NodeInfo, address: str) -> Go:
        """Join the run. Raises Failure."""
        if self.config.debug:
            resolv_conf = network.resolv_conf()
            log(Tag.DEBUG, interfaces=network.interfaces(), resolv_conf=resolv_conf, **vars(info))
        handlers = {
            Stop: self.on_stop, Question: self.on_question, Restart: self.on_restart,
            Stacks: self.on_stacks,
        }  # fmt: skip
        self.participant = Participant(self.config, info, address, handlers)
        try:
            return await self.participant.join(self.join_deadline)
        except Failure as failure:
            raise info.problem or failure from None

    async def supervise(self) -> bool:
        """Report this node's state until the verdict comes. Raises Failure; True: start again."""
        participant, ranks = self.participant, self.ranks
        ended, reported, looked_at = False, set(), 0.0
        while not participant.end.done():
            ranks.look()
            if self.restart:
                return True
            if not ended and (final := ranks.final_state()):
                ended = True
                long = time.monotonic() > ranks.started_at + LONG_RUN_S
                participant.send(StateChange(final, ranks.stepped or long))
            for failure in ranks.failures():
                # What only follows from another failure may be replaced by what is the cause.
                if (failure.rank, failure.cause) not in reported and not (
                    self.stop_reason and failure.asked
                ):
                    reported.add((failure.rank, failure.cause))
                    participant.send(failure)
            if time.monotonic() > looked_at + 1:
                looked_at = time.monotonic()
                reap(rank.pid for rank in ranks.ranks)
                self.look_around(looked_at)
            await asyncio.wait({participant.end}, timeout=LOOK_S)
        end = participant.end.result()
        if end.cause != "done":
            raise end
        return False

    def look_around(self, now: float) -> None:
        """Once a second: a request for stacks, a question to the ranks, NCCL's watchdog."""
        ranks = self.ranks
        with contextlib.suppress(OSError):
            (ranks.folder / WANTED).unlink()
            self.participant.send(StacksRequested())
        watchdog = any(rank.output.watchdog and rank.code is None for rank in ranks.ranks)
        pause_s = min(ASK_S, max(1.0, self.config.timeouts["exit-timeout"] / 4))
        if now > self.asked_at + (1.0 if watchdog else pause_s):
            self.asked_at = now
            self.do(ranks.ask())
        if now > ranks.started_at + HOOKS_S and self.config.rank_hooks:
            ranks.warn_of_missing_hooks()

    def heartbeat(self) -> Heartbeat:
        steps = {str(rank.number): rank.steps for rank in self.ranks.ranks}
        return Heartbeat(progress_age=self.ranks.progress_age(), steps=steps)

    async def start_again(self) -> Go:
        """End the program, check this node, and wait until all nodes are ready. Raises Failure."""
        restart, self.restart = self.restart, None
        self.participant.go = asyncio.get_running_loop().create_future()
        log(Tag.DDP, phase="restart in place", number=restart.number, reason=restart.reason)
        await self.ranks.end("the program starts again")
        if self.stop_reason:
            self.participant.send(StateChange(NodeState.STOPPED))
            return await self.participant.wait_for_go(math.inf)
        await end_children()  # they may hold ports and GPUs
        self.ranks.close()
        try:
            await self.prepare(self.participant.info.interface, "")
            self.participant.send(StateChange(NodeState.JOINED))
        except (Failure, OSError) as error:
            self.participant.send(node_info.failure_here(error, "preflight"))
        deadline = time.monotonic() + self.config.timeouts["join-timeout"] + 5
        return await self.participant.wait_for_go(deadline)

    # -- signals and messages

    def do(self, work) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def on_signal(self, name: str) -> None:
        """SIGTERM ends the run, because it ends this pod. Before the ranks run, only this pod."""
        if self.stop_reason or self.ending:
            return
        if self.participant and self.participant.started:  # also while it starts again in place
            if self.ranks.final_state() is NodeState.DONE:
                return  # this node is done; node 0 waits for the others
            self.stop_reason = name
            self.participant.send(StopRequested(name))
        else:
            self.stop_reason = name
            self.stopped_early.set_result(None)

    def on_stop(self, message: Stop) -> None:
        """The coordinator stops all nodes, including the one that got the signal."""
        if not self.stop_reason:
            log(Tag.DDP, phase="stop", reason=message.reason)
        self.stop_reason = self.stop_reason or message.reason
        self.stop_ranks()

    def stop_ranks(self) -> None:
        if not self.ranks.stop_deadline:
            grace_s, ranks = self.config.timeouts["grace-period"], self.ranks
            ranks.stop_deadline = time.monotonic() + grace_s
            ranks.terminate(ranks.ranks)
            reason = f"the grace period of {grace_s} s is over"
            asyncio.get_running_loop().call_later(grace_s, ranks.kill, reason)

    def on_restart(self, message: Restart) -> None:
        self.restart = message

    def on_question(self, question: Question) -> None:
        """Only the newest question counts, so that no answer overtakes a newer one."""
        self.question, idle = question, not self.question
        if idle:
            self.do(self.answer())

    async def answer(self) -> None:
        while question := self.question:
            reports = await self.ranks.ask(question.frames) if self.ranks else []
            self.participant.send(Answer(question.number, reports))
            if self.question is question:
                self.question = None

    def on_stacks(self, message: Stacks) -> None:
        """The stacks of all ranks: into the log of node 0 if nobody asked, and to who did."""
        if message.why and self.config.node_rank == 0:
            log(Tag.DDP, phase="no progress", reason=message.why)
            print(message.text, flush=True)
        if not message.why and self.ranks:
            partial = self.ranks.folder / f"{SHOWN}.partial"
            with contextlib.suppress(OSError):
                partial.write_text(message.text, errors="replace")
                partial.rename(self.ranks.folder / SHOWN)

    async def close(self, verdict: Failure | None) -> None:
        """Send the verdict to the other nodes and end the ranks."""
        self.ending = True  # a SIGTERM from now on changes nothing
        if self.coordinator and verdict and verdict.phase != "stop":
            self.coordinator.finish(verdict)
        if self.coordinator:
            await self.coordinator.close()
        if self.ranks:  # a stop has had its grace period
            reason = f"the run has ended: {verdict.cause if verdict else 'done'}"
            await self.ranks.end(reason, stopped=bool(self.stop_reason))

    async def wait_for_leftovers(self, failed: bool) -> None:
        """Give processes that the ranks left behind some time; the verdict is already written."""
        end = time.monotonic() + (LEFTOVERS_AFTER_FAILURE_S if failed else LEFTOVERS_S)
        while child_pids(os.getpid()) and time.monotonic() < end:
            reap()
            await asyncio.sleep(0.1)
        if self.ranks:
            self.ranks.close()


async def end_children(seconds: float = 2) -> None:
    """End all that the ranks have left running: this process has adopted it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        pids = descendants(os.getpid())
        kill(pids, number)
        end = time.monotonic() + seconds
        while any(state(pid) not in ("", "Z") for pid in pids) and time.monotonic() < end:
            reap()
            await asyncio.sleep(0.05)


def show_stacks(folder: Path) -> str:
    """The stacks of all ranks of the run whose launcher has this working folder."""
    (folder / SHOWN).unlink(missing_ok=True)
    (folder / WANTED).touch()
    end = time.monotonic() + 10
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            return (folder / SHOWN).read_text()
        time.sleep(0.1)
    raise Failure("launcher-failed", f"{folder}: the launcher did not answer within 10 s", "stacks")
