r"""group-agent: the sidecar of every rank of a group.

  group-agent --plan /group/scripts/group.json --self trainer-0 --state /group/state [--logs /group/logs]

It holds the task back until every rank of the group is there (its image pulled, its container started, its name in
DNS), or the deadline passes; then it tells which ranks were missing. Afterwards it stays, so that a rank that comes
back after a preemption learns that the group runs already, and ranks learn what the others have done: for start
order, for the end of auxiliary tasks, and for a failure that ends the group. It needs no access to the Kubernetes API.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

from gpuworker.group import peers as net
from gpuworker.group.barrier import RESOLVE_ALL, Missing, gather
from gpuworker.group.entry_pipes import Channel
from gpuworker.group.group_state import Facts, Plan
from gpuworker.group.rank_server import Member
from gpuworker.group.task_log import Journal
from gpuworker.runtime.log import log

MISSING = 66  # exit code of the task when ranks are missing


class Agent(Member):
    """A rank's sidecar; `logs` is a folder on a volume."""

    def __init__(self, plan: Plan, me: str, state: Path, logs: Path | None, run: str, attempt: str):
        stores = [state / "facts"]  # survives a restart of this container; on a volume, also the loss of the pod
        if logs:
            stores.append(logs / run / f".attempt-{attempt}")
        super().__init__(plan, me, state, stores, run, attempt)
        self.channel = Channel(state)
        self.journal = None
        if logs:
            pod = os.environ.get("POD_NAME", me).rpartition("-")[2]
            self.journal = Journal(self.channel.pipe("log"), logs / run / f"{me}.{attempt}.{pod}.log", me)

    async def order(self) -> None:
        """Until the tasks that this one waits for have got so far."""
        start = last = time.monotonic()
        while waiting := self.facts.waiting_for(self.task, self.plan) or await self.unready():
            if self.facts.verdict(self.me, self.plan):
                return
            if time.monotonic() - last > 60:
                last = time.monotonic()
                log("GROUP", rank=self.me, waits_for=", ".join(f"{task} {state}" for task, state in waiting.items()))
            await self.next_change(timeout=1)
        if self.task.depends_on:
            log("GROUP", rank=self.me, order_after_s=time.monotonic() - start)

    async def unready(self) -> dict[str, str]:
        """The awaited tasks with a rank that is not ready: each has a Service that publishes ready pods only."""
        waiting = {}
        for name, state in self.task.depends_on.items():
            if state == "ready" and not set(self.plan.tasks[name].hosts) <= self.facts.done:
                service = f"{self.run}-{name}.{self.plan.domain.partition('.')[2]}"
                if len(await self.peers.addresses(service)) < len(self.plan.tasks[name].hosts):
                    waiting[name] = state
        return waiting

    async def live(self, address: str | None = None, alone: bool = False) -> None:
        """Until it is cancelled. `address`: where to listen; everywhere, unless a test says otherwise."""
        try:
            if alone:
                await asyncio.Event().wait()
            await asyncio.start_server(self.answer, address, net.PORT, limit=net.LINE_LIMIT)
            await asyncio.gather(self.listen(), self.release())
        finally:
            if self.journal:
                self.journal.close()

    async def listen(self) -> None:
        news = await self.channel.news()
        while word := (await news.readline()).decode(errors="replace").split():
            await self.hear(word)

    async def hear(self, word: list[str]) -> None:
        """News from the entry script: here, started, result CODE."""
        if word[0] == "here" and self.me not in self.here:
            (self.state / "here").touch()  # for this container, should it start again
            self.here.add(self.me)
            self.notify()
        elif word[0] == "started":
            self.learn({**Facts().data(), "started": [self.me]})
            await self.tell(self.dependents())
        elif word[0] == "result":
            end = {"done": [self.me]} if word[1] == "0" else {"failed": {self.me: int(word[1])}}
            self.learn({**Facts().data(), **end})
            await self.tell(self.dependents() | self.bystanders())
            self.channel.say("told", "told")

    def dependents(self) -> set[str]:
        tasks = [task for task in self.plan.tasks.values() if self.task.name in task.depends_on]
        return {host for task in tasks for host in task.hosts}

    def bystanders(self) -> set[str]:
        """Who must know that this rank has ended: auxiliaries end with the primaries, a failure concerns all, and a
        rank that failed may be waiting for all. Small groups tell everybody, so that one who comes back can ask anyone.
        """
        hosts = set(self.plan.hosts)
        if self.facts.failed or not self.plan.stop or len(hosts) <= RESOLVE_ALL:
            return hosts
        return hosts - set(self.plan.primaries)

    async def tell(self, hosts: set[str]) -> None:
        silent = await self.peers.tell(hosts - {self.me}, {"facts": self.facts.data()})
        await self.peers.tell(silent, {"facts": self.facts.data()})  # once more; a rank that is gone needs no news

    async def release(self) -> None:
        """Hold the task back, let it go, and end it when the group ends."""
        try:
            while self.me not in self.here:
                await self.next_change()
            if not self.facts.released:
                await gather(self)
            await self.order()
        except Missing as missing:
            text = f"after {self.plan.timeout_s:g} s these ranks were missing: {missing}"
            if not self.given_up:
                self.given_up = str(missing)
                self.notify()
                # All give up together: a rank that leaves first would be missing in the others' eyes.
                await self.peers.tell(set(self.plan.hosts) - {self.me}, {"missing": self.given_up})
            log("FATAL", exit_code=MISSING, why=text)
            self.channel.say("go", f"fail {MISSING} {text}")
            return
        addresses = await self.peers.resolve_all(self.task.hosts)
        lines = [addresses.get(host, f"{host}.{self.plan.domain}") for host in self.task.hosts]
        (self.state / "node_ips").write_text("\n".join(lines) + "\n")
        verdict = self.facts.verdict(self.me, self.plan)
        if verdict is None:
            self.channel.say("go", "go")
        else:  # the group ended before this task began
            self.channel.say("go", "done" if verdict == "done" else f"fail 1 not started: {verdict}")
        while verdict is None:
            await self.next_change()
            verdict = self.facts.verdict(self.me, self.plan)
        log("GROUP", rank=self.me, end=verdict)
        self.channel.say("end", verdict)


def main() -> None:
    parser = argparse.ArgumentParser(prog="group-agent", description=__doc__.splitlines()[0])
    parser.add_argument("--plan", type=Path, required=True, help="the group, as JSON")
    parser.add_argument("--self", required=True, dest="me", help="this rank's host, TASK-RANK")
    parser.add_argument("--state", type=Path, required=True, help="folder shared with the task")
    parser.add_argument("--alone", action="store_true", help="keep logs only: the ranks do not know each other")
    parser.add_argument("--logs", type=Path, help="folder on a volume that keeps what the task prints")
    args = parser.parse_args()
    run_id, attempt = os.environ.get("RUN_ID", "run"), os.environ.get("ATTEMPT", "0")
    plan = Plan.load(args.plan)
    log("GROUP", rank=args.me, run=run_id, attempt=attempt, ranks=len(plan.hosts), deadline_s=plan.timeout_s)

    async def whole() -> None:
        agent = Agent(plan, args.me, args.state, args.logs, run_id, attempt)
        living = asyncio.create_task(agent.live(alone=args.alone))
        for number in (signal.SIGTERM, signal.SIGINT):  # the kubelet ends a sidecar after the task's container
            asyncio.get_running_loop().add_signal_handler(number, living.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await living

    asyncio.run(whole())


if __name__ == "__main__":
    main()
