"""ddp-launch: run a program under torchrun on every node of a world, so that it never hangs and says why it ended.

  ddp-launch [FLAGS] -- train.py --epochs 3        (what follows -- is what torchrun runs: SCRIPT ARGS… or -m MODULE …)

The plan comes from flags and from NNODES, NODE_RANK, NPROC_PER_NODE, MASTER_ADDR, MASTER_PORT, RUN_ID and ATTEMPT.
Phases: plan, resolve, interface, preflight, rendezvous, run; one line each. The end is one line too, and the same on
every node: [DONE], or [FATAL] with the exit code, the cause, the nodes and what to do. failure_causes.py has the table.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from gpuworker.launch import etcd, network, statefulset
from gpuworker.launch import node_info as cards
from gpuworker.launch.config import Plan, parser, read_plan
from gpuworker.launch.coordinator import Lead
from gpuworker.launch.failure_causes import DONE, Verdict
from gpuworker.launch.participant import Member, told
from gpuworker.launch.torchrun_process import Child
from gpuworker.runtime.log import log, write_termination_message
from gpuworker.runtime.processes import adopt_orphans, child_pids, reap

LEFTOVERS_S, FAILED_S = 30, 10  # how long what the ranks left behind (an uploader of metrics) may take at the end


class Launcher:
    def __init__(self, plan: Plan, begun: float):
        self.plan, self.begun = plan, begun
        self.deadline = begun + plan.seconds["deadline"]
        self.lead: Lead | None = None
        self.member: Member | None = None
        self.child: Child | None = None
        self.running = self.over = False  # torchrun has begun; the end has
        self.stopping = ""
        self.stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def phase(self, name: str, since: float, **facts: object) -> float:
        now = time.monotonic()
        log("DDP", phase=name, **facts, seconds=now - since)
        return now

    async def run(self) -> None:
        """Returns when every node is done; raises the Verdict otherwise."""
        plan, now = self.plan, self.begun
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.stop, signal.Signals(number).name)
        adopt_orphans()
        log("ENV", nnodes=plan.nodes, nproc_per_node=plan.processes, master=f"{plan.master}:{plan.port}",
            run_id=plan.run_id, attempt=plan.attempt, backend=plan.backend,
            **{name.replace("-", "_") + "_s": value for name, value in plan.seconds.items()})  # fmt: skip
        self.child = Child(plan)
        if plan.node == 0:
            self.lead = Lead(plan, self.deadline)
            await self.lead.serve()
        address = await network.resolve(plan, self.deadline)
        now = self.phase("resolve", now, master=plan.master, address=address)
        problem, interface, own = None, "", ""
        try:
            interface, own = network.choose_interface(plan, address)
            now = self.phase("interface", now, interface=interface, address=own)
            if plan.backend == "etcd":
                now = self.phase("etcd", now, endpoint=plan.etcd, version=await etcd.wait(plan, self.deadline))
        except Verdict as verdict:
            problem = verdict  # node 0 should hear of it, so that nobody waits for this node
        go = await self.preflight(address, interface, own, problem)
        address = self.member.address  # where node 0 was met
        now = self.phase("master ready, preflight", now, nodes=plan.nodes, id=go["id"])
        if self.over:
            return
        self.running = True
        arguments = self.child.start(go, address, interface)
        if plan.debug:
            log("DEBUG", torchrun=" ".join(arguments))
        await self.watch()

    async def preflight(self, address: str, interface: str, own: str, problem: Verdict | None) -> dict:
        # In a thread: asking for GPUs can take seconds, and on node 0 the others are knocking.
        card = await asyncio.to_thread(cards.gather, self.plan, interface, own)
        try:
            if not problem:
                cards.check_own(self.plan, card)
        except Verdict as verdict:
            problem = verdict
        if problem:
            card["problem"] = problem.data()
        if self.plan.debug:
            log("DEBUG", interfaces=network.interfaces(), resolv_conf=network.resolv_conf(), **card)
        on = {"stop": self.stop_program, "where": self.tell_where}
        self.member = Member(self.plan, card, address, on)
        try:
            return await self.member.join(self.deadline)
        except Verdict:
            if problem:
                raise problem from None
            raise

    async def watch(self) -> None:
        """Until node 0 says how the run ends; by then every node has said how it went there."""
        member, child = self.member, self.child
        watching = asyncio.create_task(child.watch())
        said = ""
        while not member.end.done():
            reap(child.process.pid)
            if child.formed and not said:
                said = "formed"
                member.say({"state": said})
            if said in ("", "formed") and not self.stopping and (failure := child.failure()):
                said = "failed"
                member.say({"failed": failure})
            if watching.done() and said in ("", "formed"):
                code = watching.result()
                said = child.outcome(code) if self.stopping or code == 0 else "failed"
                member.say({"failed": child.agent_failure(code)} if said == "failed" else {"state": said})
            await asyncio.wait({member.end}, timeout=0.1)
        watching.cancel()
        end = member.end.result()
        if end["key"] != "done":
            raise told(end)

    # -- what comes from outside

    def stop(self, name: str) -> None:
        """SIGTERM: this pod goes, so the world goes; before there is a world, only this pod goes."""
        if self.stopping or self.over:
            return
        self.stopping = name
        if self.running:
            self.member.say({"stopping": name})
        else:
            self.stopped.set_result(None)

    def stop_program(self, why: object) -> None:
        """Node 0 tells all nodes, the one that was told first included."""
        if not self.stopping:
            log("DDP", phase="stop", why=why)
        self.stopping = self.stopping or str(why)
        if self.running:
            self.child.stop_ranks()
            asyncio.get_running_loop().call_later(self.plan.seconds["grace"], self.child.kill_ranks)

    def tell_where(self, _: object) -> None:
        async def tell() -> None:
            self.member.say({"where": await self.child.where()})

        if self.running:
            self.telling = asyncio.create_task(tell())

    async def close(self, verdict: Verdict | None) -> None:
        """Leave nothing running, and let the other nodes know."""
        self.over = True  # a SIGTERM that comes now changes nothing, and must not cost the verdict
        if self.lead and verdict and verdict.phase != "stop":
            self.lead.finish(verdict.data())
        if self.lead:
            await self.lead.close()
        if self.child:
            await self.child.close()
        end = time.monotonic() + (FAILED_S if verdict else LEFTOVERS_S)
        while child_pids(os.getpid()) and time.monotonic() < end:
            reap(0)
            await asyncio.sleep(0.1)


async def launch(plan: Plan, begun: float) -> Verdict | None:
    launcher, verdict = Launcher(plan, begun), None
    running = asyncio.create_task(launcher.run())
    await asyncio.wait({running, launcher.stopped}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if running.done():
            running.result()
        else:
            # Not awaited: what it waits for may swallow the cancellation (asyncio.wait_for can), and it is over anyway.
            running.cancel()
            why = f"{cards.who(cards.own())} got {launcher.stopping} before the world was formed"
            raise Verdict("stopped", why, "stop")
    except Verdict as found:
        verdict = found
    except Exception as error:
        traceback.print_exc()
        verdict = Verdict("launcher", f"{cards.who(cards.own())}: {type(error).__name__}: {error}")
    try:
        await launcher.close(verdict)
    except Exception:  # what is left behind changes no verdict
        traceback.print_exc()
    return verdict


def main() -> None:
    begun = time.monotonic()
    args = parser().parse_args()
    environ, plan = dict(os.environ), None
    if args.park:
        environ["ATTEMPT"] = statefulset.begin(Path(args.park))
    try:
        plan = read_plan(args, environ)
        # Not asyncio.run, which waits for every task to end: whatever still waits for something ends with the process.
        verdict = asyncio.new_event_loop().run_until_complete(launch(plan, begun))
    except Verdict as found:
        verdict = found
    code = report(plan, verdict, time.monotonic() - begun)
    if args.park:
        statefulset.park(Path(args.park), args.attempts, code)
    sys.stdout.flush()
    os._exit(code)  # a look-up of a name that still hangs in its thread must not hold this up


def report(plan: Plan | None, verdict: Verdict | None, seconds: float) -> int:
    """Print the one verdict line, leave it where Kubernetes shows it, and give the exit code."""
    if verdict is None:
        log("DONE", world=plan.world, seconds=seconds)
        return DONE
    tag = "DONE" if verdict.cause.key == "saved" else "FATAL"
    facts = {"exit_code": verdict.code, "cause": verdict.cause.key, "phase": verdict.phase, "why": verdict.why}
    log(tag, **facts, do=verdict.cause.remedy, seconds=seconds)
    write_termination_message(f"exit code {verdict.code} ({verdict.cause.key}): {verdict.why}. {verdict.cause.remedy}")
    return verdict.code


if __name__ == "__main__":
    main()
