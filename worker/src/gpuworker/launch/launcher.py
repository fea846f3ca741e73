"""ddp-launch: run a program under torchrun on every node of a run, without hangs and with one verdict for all nodes.

  ddp-launch [FLAGS] -- train.py --epochs 3        (after --, the program for torchrun: SCRIPT ARGS… or -m MODULE ARGS…)

The configuration is in the flags and in NNODES, NODE_RANK, NPROC_PER_NODE, MASTER_ADDR, MASTER_PORT, RUN_ID and
ATTEMPT. Phases: config, resolve, interface, preflight, rendezvous, run; one log line each. The last line is the same on
every node: [DONE], or [FATAL] with exit code, cause, nodes and remedy. failure_causes.py has the table of causes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from gpuworker.launch import etcd, network, node_info, statefulset
from gpuworker.launch.config import LaunchConfig, parser, read_config
from gpuworker.launch.coordinator import Coordinator
from gpuworker.launch.failure_causes import Verdict
from gpuworker.launch.participant import Participant
from gpuworker.launch.protocol import Go, NodeState, StackRequest, Stacks, StateChange, Stop, StopRequested
from gpuworker.launch.torchrun_process import TorchrunProcess
from gpuworker.runtime.contract import ExitCode, Tag
from gpuworker.runtime.log import log, write_termination_message
from gpuworker.runtime.processes import adopt_orphans, child_pids, reap

# Seconds that processes left behind by the ranks (an uploader of metrics) may take at the end of a good and a bad run.
LEFTOVERS_S, LEFTOVERS_AFTER_FAILURE_S = 30, 10


class Launcher:
    """The launcher of one node; on node 0 with the coordinator."""

    def __init__(self, config: LaunchConfig, started_at: float):
        self.config, self.started_at = config, started_at
        self.join_deadline = started_at + config.timeouts["join-timeout"]
        self.coordinator: Coordinator | None = None
        self.participant: Participant | None = None
        self.torchrun: TorchrunProcess | None = None
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
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.on_signal, signal.Signals(number).name)
        adopt_orphans()
        log(Tag.ENV, nnodes=config.nnodes, nproc_per_node=config.nproc_per_node,
            master=f"{config.master_addr}:{config.master_port}", run_id=config.run_id, attempt=config.attempt,
            backend=config.backend,
            **{name.replace("-", "_") + "_s": value for name, value in config.timeouts.items()})  # fmt: skip
        self.torchrun = TorchrunProcess(config)
        if config.node_rank == 0:
            self.coordinator = Coordinator(config, self.join_deadline)
            await self.coordinator.serve()
        address = await network.resolve(config, self.join_deadline)
        now = self.log_phase("resolve", now, master=config.master_addr, address=address)
        problem, interface, own_address = None, "", ""
        try:
            interface, own_address = network.choose_interface(config, address)
            now = self.log_phase("interface", now, interface=interface, address=own_address)
            if config.backend == "etcd":
                version = await etcd.wait(config, self.join_deadline)
                now = self.log_phase("etcd", now, endpoint=config.etcd, version=version)
        except Verdict as verdict:
            problem = verdict  # sent to node 0, so that no other node waits for this one
        go = await self.preflight(address, interface, own_address, problem)
        address = self.participant.address  # where the coordinator was reached
        now = self.log_phase("master ready, preflight", now, nodes=config.nnodes, id=go.rendezvous_id)
        if self.ending:
            return
        self.running = True
        arguments = self.torchrun.start(go, address, interface)
        if config.debug:
            log(Tag.DEBUG, torchrun=" ".join(arguments))
        await self.supervise()

    async def preflight(self, address: str, interface: str, own_address: str, problem: Verdict | None) -> Go:
        """Join the run. Raises Verdict."""
        # In a thread: the query for GPUs can take seconds, and on node 0 the other nodes connect meanwhile.
        info = await asyncio.to_thread(node_info.collect, self.config, interface, own_address)
        try:
            if not problem:
                node_info.check_self(self.config, info)
        except Verdict as verdict:
            problem = verdict
        if problem:
            info.problem = problem.message()
        if self.config.debug:
            log(Tag.DEBUG, interfaces=network.interfaces(), resolv_conf=network.resolv_conf(), **vars(info))
        handlers = {Stop: self.on_stop, StackRequest: self.on_stack_request}
        self.participant = Participant(self.config, info, address, handlers)
        try:
            return await self.participant.join(self.join_deadline)
        except Verdict:
            if problem:
                raise problem from None
            raise

    async def supervise(self) -> None:
        """Report this node's state until the coordinator sends the verdict. Raises Verdict."""
        participant, torchrun = self.participant, self.torchrun
        waiting = asyncio.create_task(torchrun.wait())
        formed = ended = False  # what has been reported
        while not participant.end.done():
            reap(torchrun.process.pid)
            if torchrun.formed and not formed and not ended:
                formed = True
                participant.send(StateChange(NodeState.FORMED))
            if not ended and not self.stop_reason and (failure := torchrun.failure()):
                ended = True
                participant.send(failure)
            if waiting.done() and not ended:
                ended = True
                code = waiting.result()
                well = self.stop_reason or code == 0
                participant.send(StateChange(torchrun.state_after(code)) if well else torchrun.torchrun_failure(code))
            await asyncio.wait({participant.end}, timeout=0.1)
        waiting.cancel()
        end = participant.end.result()
        if end.cause != "done":
            raise Verdict.of(end)

    # -- signals and messages

    def on_signal(self, name: str) -> None:
        """SIGTERM ends the run, because it ends this pod. Before the world is formed, only this pod ends."""
        if self.stop_reason or self.ending:
            return
        self.stop_reason = name
        if self.running:
            self.participant.send(StopRequested(name))
        else:
            self.stopped_early.set_result(None)

    def on_stop(self, message: Stop) -> None:
        """The coordinator stops all nodes, including the one that got the signal."""
        if not self.stop_reason:
            log(Tag.DDP, phase="stop", reason=message.reason)
        self.stop_reason = self.stop_reason or message.reason
        if self.running:
            self.torchrun.terminate_ranks()
            asyncio.get_running_loop().call_later(self.config.timeouts["grace-period"], self.torchrun.kill_all)

    def on_stack_request(self, _: StackRequest) -> None:
        async def report() -> None:
            self.participant.send(Stacks(await self.torchrun.collect_stacks()))

        if self.running:
            self.stack_report = asyncio.create_task(report())

    async def close(self, verdict: Verdict | None) -> None:
        """Send the verdict to the other nodes and end every process of the run."""
        self.ending = True  # a SIGTERM from now on changes nothing
        if self.coordinator and verdict and verdict.phase != "stop":
            self.coordinator.finish(verdict.message())
        if self.coordinator:
            await self.coordinator.close()
        if self.torchrun:
            await self.torchrun.close()
        end = time.monotonic() + (LEFTOVERS_AFTER_FAILURE_S if verdict else LEFTOVERS_S)
        while child_pids(os.getpid()) and time.monotonic() < end:
            reap(0)
            await asyncio.sleep(0.1)


async def launch(config: LaunchConfig, started_at: float) -> Verdict | None:
    """Run one launch. Returns None when all nodes are done, else the verdict."""
    launcher, verdict = Launcher(config, started_at), None
    running = asyncio.create_task(launcher.run())
    await asyncio.wait({running, launcher.stopped_early}, return_when=asyncio.FIRST_COMPLETED)
    this_node = node_info.format_node(node_info.describe_self())
    try:
        if running.done():
            running.result()
        else:
            # Not awaited: what it waits for may swallow the cancellation (asyncio.wait_for can).
            running.cancel()
            raise Verdict("stopped", f"{this_node} got {launcher.stop_reason} before the world was formed", "stop")
    except Verdict as found:
        verdict = found
    except Exception as error:
        traceback.print_exc()
        verdict = Verdict("launcher-failed", f"{this_node}: {type(error).__name__}: {error}")
    try:
        await launcher.close(verdict)
    except Exception:  # a failure of the clean-up does not change the verdict
        traceback.print_exc()
    return verdict


def main() -> None:
    started_at = time.monotonic()
    args = parser().parse_args()
    environ, config = dict(os.environ), None
    if args.idle_after_exit:
        environ["ATTEMPT"] = statefulset.begin(Path(args.idle_after_exit))
    try:
        config = read_config(args, environ)
        # Not asyncio.run, which waits for every task to end: tasks that still wait end with the process.
        verdict = asyncio.new_event_loop().run_until_complete(launch(config, started_at))
    except Verdict as found:
        verdict = found
    code = report(config, verdict, time.monotonic() - started_at)
    if args.idle_after_exit:
        statefulset.finish(Path(args.idle_after_exit), args.max_attempts, code)
    sys.stdout.flush()
    os._exit(code)  # a look-up of a name that still hangs in its thread must not delay the exit


def report(config: LaunchConfig | None, verdict: Verdict | None, seconds: float) -> int:
    """Log the verdict, write it to the termination message, and return the exit code."""
    if verdict is None:
        log(Tag.DONE, world=config.world_size, seconds=seconds)
        return int(ExitCode.DONE)
    cause = verdict.cause
    tag = Tag.DONE if cause.key == "saved" else Tag.FATAL
    facts = {"exit_code": verdict.code, "cause": cause.key, "phase": verdict.phase, "reason": verdict.reason}
    log(tag, **facts, remedy=cause.remedy, seconds=seconds)
    write_termination_message(f"exit code {verdict.code} ({cause.key}): {verdict.reason}. {cause.remedy}")
    return verdict.code


if __name__ == "__main__":
    main()
