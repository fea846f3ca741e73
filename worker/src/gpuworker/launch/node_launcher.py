"""The launcher of one node: preflight, start of torchrun, supervision, restarts in place, and the end of the ranks."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time

from gpuworker.launch import etcd, network, node_info
from gpuworker.launch.config import STOP_SIGNALS, LaunchConfig
from gpuworker.launch.coordinator import Coordinator
from gpuworker.launch.failure_causes import Verdict
from gpuworker.launch.participant import Participant
from gpuworker.launch.protocol import (
    Go,
    HangSuspected,
    NodeState,
    RankFailure,
    Restart,
    StackRequest,
    StateChange,
    Stop,
    StopRequested,
)
from gpuworker.launch.root_cause import LONG_RUN_S
from gpuworker.launch.torchrun_process import TorchrunProcess
from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log
from gpuworker.runtime.processes import adopt_orphans, child_pids, descendants, kill, reap, state

# Seconds that processes left behind by the ranks (an uploader of metrics) may take at the end of a good and a bad run.
LEFTOVERS_S, LEFTOVERS_AFTER_FAILURE_S = 30, 10


class NodeLauncher:
    """The launcher of one node; on node 0 with the coordinator."""

    def __init__(self, config: LaunchConfig, started_at: float):
        self.config, self.started_at = config, started_at
        self.join_deadline = started_at + config.timeouts["join-timeout"]
        self.coordinator: Coordinator | None = None
        self.participant: Participant | None = None
        self.torchrun: TorchrunProcess | None = None
        self.restart: Restart | None = None  # requested by the coordinator
        self.running = self.ending = False  # torchrun was started; the end has begun
        self.stop_reason = ""
        self.stopped_early: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def log_phase(self, name: str, since: float, **facts: object) -> float:
        now = time.monotonic()
        log(Tag.DDP, phase=name, **facts, seconds=now - since)
        return now

    async def run(self) -> None:
        """Return when every node is done. Raises Verdict otherwise."""
        config, now = self.config, self.started_at
        for number in STOP_SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup
            asyncio.get_running_loop().add_signal_handler(number, self.on_signal, signal.Signals(number).name)
        adopt_orphans()
        log(Tag.ENV, nnodes=config.nnodes, nproc_per_node=config.nproc_per_node,
            master=f"{config.master_addr}:{config.master_port}", run_id=config.run_id, attempt=config.attempt,
            backend=config.backend,
            **{name.replace("-", "_") + "_s": value for name, value in config.timeouts.items()})  # fmt: skip
        if config.node_rank == 0:
            self.coordinator = Coordinator(config, self.join_deadline)
            await self.coordinator.serve()
        # A problem of this node goes to node 0, so that no other node waits for this one.
        problem = self.problem(config.problem) if config.problem else None
        address = interface = own_address = ""
        try:
            if not problem:
                self.torchrun = TorchrunProcess(config)
        except (Verdict, OSError) as error:
            problem = self.problem(error)
        address = await network.resolve(config, self.join_deadline)
        now = self.log_phase("resolve", now, master=config.master_addr, address=address)
        try:
            if not problem:
                interface, own_address = network.choose_interface(config, address)
                now = self.log_phase("interface", now, interface=interface, address=own_address)
                if config.backend == "etcd":
                    version = await etcd.wait(config, self.join_deadline)
                    now = self.log_phase("etcd", now, endpoint=config.etcd, version=version)
        except (Verdict, OSError) as error:
            problem = self.problem(error)
        go = await self.preflight(address, interface, own_address, problem)
        address = self.participant.address  # where the coordinator was reached
        now = self.log_phase("master ready, preflight", now, nodes=config.nnodes, id=go.rendezvous_id)
        while not self.ending:
            self.running = True
            arguments = self.torchrun.start(go, address, interface)
            self.participant.progress_age = self.torchrun.ranks.progress_age
            if config.debug:
                log(Tag.DEBUG, torchrun=" ".join(arguments))
            if not await self.supervise():
                return
            go = await self.start_again()

    def problem(self, error: Exception) -> Verdict:
        """Any fault of this node before the run, as a verdict that the other nodes can be given: it names this node."""
        node = node_info.format_node(node_info.describe_self())
        if not isinstance(error, Verdict):
            return Verdict("launcher-failed", f"{node}: {type(error).__name__}: {error}", "preflight")
        if node in error.reason:
            return error
        return Verdict(error.cause.key, f"{node}: {error.reason}", error.phase)

    async def preflight(self, address: str, interface: str, own_address: str, problem: Verdict | None) -> Go:
        """Join the run. Raises Verdict."""
        info = node_info.describe_self()
        info.node = self.config.node_rank
        try:
            if not problem:
                # In a thread: the query for GPUs can take seconds, and on node 0 the other nodes connect meanwhile.
                info = await asyncio.to_thread(node_info.collect, self.config, interface, own_address)
                node_info.check_self(self.config, info)
        except Exception as error:
            problem = self.problem(error)
        if problem:
            info.problem = problem.message()
        if self.config.debug:
            log(Tag.DEBUG, interfaces=network.interfaces(), resolv_conf=network.resolv_conf(), **vars(info))
        handlers = {Stop: self.on_stop, StackRequest: self.on_stack_request, Restart: self.on_restart}
        self.participant = Participant(self.config, info, address, handlers)
        self.importing = asyncio.create_task(self.wait_for_torch())
        try:
            return await self.participant.join(self.join_deadline)
        except Verdict:
            if problem:
                raise problem from None
            raise

    async def wait_for_torch(self) -> None:
        """Report READY once torchrun's process has imported torch, or that it could not."""
        while self.torchrun and not self.torchrun.ready:
            await asyncio.sleep(0.05)
            if failure := self.torchrun.failure():
                self.participant.send_standing(failure)
                return
        self.participant.send_standing(StateChange(NodeState.READY))

    async def supervise(self) -> bool:
        """Report this node's state until the coordinator sends the verdict. Raises Verdict; True: start again."""
        participant, torchrun, ranks = self.participant, self.torchrun, self.torchrun.ranks
        formed = ended = hang_sent = False  # what has been reported
        reported: RankFailure | None = None
        while not participant.end.done():
            reap(torchrun.process.pid)
            if ranks.formed and not formed:
                formed = True
                participant.send(StateChange(NodeState.FORMED))
            if ranks.hang_seen and not hang_sent:
                hang_sent = True
                participant.send(HangSuspected())
            if self.restart:
                return True
            if torchrun.signal:
                self.on_signal(f"{torchrun.signal} (sent to torchrun)")
            if not ended and not reported and (final := ranks.final_state()):
                ended = True
                ranks.release()
                progressed = ranks.stepped or time.monotonic() > ranks.started_at + LONG_RUN_S
                participant.send(StateChange(final, progressed))
            if not ended and not self.stop_reason and (failure := ranks.failure() or torchrun.failure()):
                # A failure that only follows from another rank's may be replaced by one with a cause of its own.
                if reported is None or failure.cause != reported.cause:
                    participant.send(failure)
                reported = failure
            if not ended and self.stop_reason and torchrun.failure():
                ended = True
                participant.send(StateChange(NodeState.STOPPED))
            await asyncio.wait({participant.end}, timeout=0.1)
        end = participant.end.result()
        if end.cause != "done":
            raise Verdict.of(end)
        return False

    async def start_again(self) -> Go:
        """End the program, check this node, and wait until all nodes are ready. Raises Verdict."""
        restart, self.restart, self.running = self.restart, None, False
        self.participant.go = asyncio.get_running_loop().create_future()
        log(Tag.DDP, phase="restart in place", number=restart.number, reason=restart.reason)
        await self.torchrun.end("the program starts again")
        if self.stop_reason:
            self.participant.send(StateChange(NodeState.STOPPED))
            return await self.participant.wait_for_go(math.inf)
        await end_children()  # they may hold ports and GPUs
        self.torchrun.close()
        try:
            info = await asyncio.to_thread(node_info.collect, self.config, self.participant.info.interface, "")
            node_info.check_self(self.config, info)
            self.torchrun = TorchrunProcess(self.config)
        except (Verdict, OSError) as error:
            found = self.problem(error)
            self.participant.send(RankFailure(found.cause.key, None, found.reason, "preflight"))
        else:
            self.importing = asyncio.create_task(self.wait_for_torch())
        return await self.participant.wait_for_go(time.monotonic() + self.config.timeouts["join-timeout"] + 5)

    # -- signals and messages

    def on_signal(self, name: str) -> None:
        """SIGTERM ends the run, because it ends this pod. Before the world is formed, only this pod ends."""
        if self.stop_reason or self.ending:
            return
        self.stop_reason = name
        if self.participant and self.participant.started:  # also while the program starts again in place
            self.participant.send(StopRequested(name))
        else:
            self.stopped_early.set_result(None)

    def on_stop(self, message: Stop) -> None:
        """The coordinator stops all nodes, including the one that got the signal."""
        if not self.stop_reason:
            log(Tag.DDP, phase="stop", reason=message.reason)
        self.stop_reason = self.stop_reason or message.reason
        if not self.torchrun.ranks.stop_deadline:
            grace_s = self.config.timeouts["grace-period"]
            self.torchrun.ranks.stop_deadline = time.monotonic() + grace_s
            self.torchrun.ranks.terminate()
            reason = f"the grace period of {grace_s} s is over"
            asyncio.get_running_loop().call_later(grace_s, self.torchrun.ranks.kill, reason)

    def on_restart(self, message: Restart) -> None:
        self.restart = message

    def on_stack_request(self, request: StackRequest) -> None:
        async def report() -> None:
            stacks = await self.torchrun.ranks.collect()
            if request.reason:
                places = {f"rank_{rank}": where for rank, where in stacks.ranks.items()}
                log(Tag.DDP, phase="no progress", reason=request.reason, **places)
            self.participant.send(stacks)

        if self.running:
            self.stack_report = asyncio.create_task(report())

    async def close(self, verdict: Verdict | None) -> None:
        """Send the verdict to the other nodes and end the ranks."""
        self.ending = True  # a SIGTERM from now on changes nothing
        if self.coordinator and verdict and verdict.phase != "stop":
            self.coordinator.finish(verdict.message())
        if self.coordinator:
            await self.coordinator.close()
        if self.torchrun:
            # A stop has had its grace period; after a good end only torchrun itself still runs.
            reason = f"the run has ended: {verdict.cause.key if verdict else 'done'}"
            await self.torchrun.end(reason, stopped=bool(self.stop_reason))

    async def wait_for_leftovers(self, failed: bool) -> None:
        """Give processes that the ranks left behind some time; the verdict is already written."""
        end = time.monotonic() + (LEFTOVERS_AFTER_FAILURE_S if failed else LEFTOVERS_S)
        while child_pids(os.getpid()) and time.monotonic() < end:
            reap(0)
            await asyncio.sleep(0.1)
        if self.torchrun:
            self.torchrun.close()


async def end_children(seconds: float = 2) -> None:
    """End all that the ranks have left running: this process has adopted it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        pids = descendants(os.getpid())
        kill(pids, number)
        end = time.monotonic() + seconds
        while any(state(pid) not in ("", "Z") for pid in pids) and time.monotonic() < end:
            reap(0)
            await asyncio.sleep(0.05)
