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
import json
import os
import random
import signal
import time
from pathlib import Path

from gpuworker.group import peers as net
from gpuworker.group.channel import Channel
from gpuworker.group.journal import Journal
from gpuworker.group.plan import Facts, Plan
from gpuworker.log import log

MISSING = 66  # exit code of the task when ranks are missing
RESOLVE_ALL = 64  # in a larger group a rank resolves its own task and the first of each other; the leader resolves all
POLL_S = 0.25


class Missing(Exception):
    """The deadline passed; the message names the missing ranks."""


class Agent:
    """One rank's agent; `me` is its host, TASK-RANK."""

    def __init__(self, plan: Plan, me: str, state: Path, logs: Path | None, run: str, attempt: str):
        self.plan, self.me, self.state, self.run, self.attempt = plan, me, state, run, attempt
        self.task = plan.task_of(me)
        self.leader = plan.hosts[0]
        self.facts = Facts()
        # Which tasks' containers are known to run: this one's, and in the leader those of all that have called.
        self.here: set[str] = {me} if (state / "here").exists() else set()
        self.changed = asyncio.Event()
        self.peers = net.Peers(plan.domain, {"run": run, "attempt": attempt, "rank": me})
        self.channel = Channel(state)
        self.journal = None
        self.stores = [state / "facts"]  # survives a restart of this container; on a volume, also the loss of the pod
        if logs:
            folder = logs / run
            self.stores.append(folder / f".attempt-{attempt}")
            pod = os.environ.get("POD_NAME", me).rpartition("-")[2]
            self.journal = Journal(self.channel.pipe("log"), folder / f"{me}.{attempt}.{pod}.log", me)
        for store in self.stores:
            store.mkdir(parents=True, exist_ok=True)
            for file in store.glob("*.json"):
                with contextlib.suppress(OSError, ValueError, KeyError):
                    self.facts.merge(json.loads(file.read_text()), plan.hosts)

    # What others may ask.

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            question = json.loads(await asyncio.wait_for(reader.readline(), net.QUESTION_S))
            if {"run": self.run, "attempt": self.attempt}.items() <= question.items():
                await self.reply(question, reader, writer)
        except (OSError, ValueError, KeyError, AttributeError, TypeError, asyncio.TimeoutError):
            pass  # a stranger, or a caller that left
        finally:
            writer.close()

    async def reply(self, question: dict, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if "facts" in question:
            self.learn(question["facts"])
        if question.get("here") and question["rank"] in self.plan.hosts:
            name = question["rank"]
            if name not in self.here:
                self.here.add(name)
                self.notify()
            left = asyncio.create_task(reader.read())  # ends when the caller goes away
            while not (self.facts.released or left.done() or (self.state / "failed").exists()):
                await self.next_change(left)
            left.cancel()
        failed = self.state / "failed"
        answer = {"facts": self.facts.data(), "here": self.me in self.here}
        if failed.exists():
            answer["missing"] = failed.read_text()
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()

    def notify(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    async def next_change(self, *others: asyncio.Task, timeout: float | None = None) -> None:
        change = asyncio.create_task(self.changed.wait())
        await asyncio.wait([change, *others], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        change.cancel()

    def learn(self, data: dict) -> None:
        before = self.facts.data()
        self.facts.merge(data, self.plan.hosts)
        if self.facts.data() != before:
            for store in self.stores:
                scratch = store / f"{self.me}.tmp"
                scratch.write_text(json.dumps(self.facts.data()))
                scratch.replace(store / f"{self.me}.json")
            self.notify()

    # The barrier.

    async def barrier(self) -> None:
        """Until every rank is here, or the group runs already. Raises Missing at the deadline."""
        start = time.monotonic()
        end = start + self.plan.timeout_s
        gather = asyncio.create_task(self.lead() if self.me == self.leader else self.follow(end))
        recall = asyncio.create_task(self.recall())
        try:
            done, _ = await asyncio.wait([gather, recall], timeout=end + 2 - start, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
            if not self.facts.released:
                raise Missing(await self.missing())
        finally:
            gather.cancel()
            recall.cancel()
        log("GROUP", rank=self.me, ranks=len(self.plan.hosts), together_after_s=time.monotonic() - start)

    async def lead(self) -> None:
        waiting = set(self.plan.hosts)
        while waiting or self.here < set(self.plan.hosts):
            waiting -= (await self.peers.resolve_all(waiting)).keys()
            if waiting or self.here < set(self.plan.hosts):
                await self.next_change(timeout=max(POLL_S, len(waiting) / 100) if waiting else 5)
        self.learn({**Facts().data(), "released": True})

    async def follow(self, end: float) -> None:
        needed = {self.leader, *self.needed()}
        addresses: dict[str, str] = {}
        while missing := needed - addresses.keys():
            addresses |= await self.peers.resolve_all(missing)
            await asyncio.sleep(POLL_S if needed - addresses.keys() else 0)
        while not self.facts.released:
            left = max(1.0, end + 1 - time.monotonic())  # the leader knows better who is missing
            answer = await self.peers.ask(addresses[self.leader], {"here": True}, left)
            if answer and "missing" in answer:
                raise Missing(answer["missing"])
            if answer:
                self.learn(answer["facts"])
            else:
                await asyncio.sleep(POLL_S)
                addresses[self.leader] = await self.peers.resolve(self.leader) or addresses[self.leader]

    def needed(self) -> list[str]:
        if len(self.plan.hosts) <= RESOLVE_ALL:
            return self.plan.hosts
        return [*self.task.hosts, *(task.hosts[0] for task in self.plan.tasks.values())]

    async def recall(self) -> None:
        """A rank that comes back asks the others, few at a time, whether the group runs already."""
        others = [host for host in self.plan.hosts if host != self.me]
        while not self.facts.released and others:
            await asyncio.sleep(4 * POLL_S)
            some = await self.peers.resolve_all(random.sample(others, min(3, len(others))))
            for answer in await asyncio.gather(*(self.peers.ask(address, {}) for address in some.values())):
                if answer:
                    self.learn(answer["facts"])
        if not others:
            await asyncio.Event().wait()

    async def missing(self) -> str:
        """Which ranks are not here, as the leader knows it, or as this rank can find out."""
        addresses = await self.peers.resolve_all(self.plan.hosts)
        here = set(self.here)
        if self.me != self.leader:
            hosts = [host for host in addresses if host != self.me]
            answers = await asyncio.gather(*(self.peers.ask(addresses[host], {}) for host in hosts))
            here |= {host for host, answer in zip(hosts, answers, strict=True) if answer and answer["here"]}
        absent = [host for host in self.plan.hosts if host not in here and host != self.me]
        nowhere = [host for host in absent if host not in addresses]
        silent = [host for host in absent if host in addresses]
        parts = []
        if nowhere:
            parts.append(f"no pod with an address for {', '.join(nowhere)} (not scheduled, or not created)")
        if silent:
            parts.append(f"{', '.join(silent)} did not start (image pull? crash?)")
        return "; ".join(parts) or f"{self.leader}, the first rank, did not answer on port {net.PORT}"

    # Start order.

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

    # The whole life.

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
        """Who must know that this rank has ended: auxiliaries end with the primaries; a failure concerns all."""
        hosts = set(self.plan.hosts)
        return hosts if self.facts.failed else hosts - set(self.plan.primaries)

    async def tell(self, hosts: set[str]) -> None:
        silent = await self.peers.tell(hosts - {self.me}, self.facts.data())
        await self.peers.tell(silent, self.facts.data())  # once more; a rank that is gone needs no news

    async def release(self) -> None:
        """Hold the task back, let it go, and end it when the group ends."""
        try:
            while self.me not in self.here:
                await self.next_change()
            if not self.facts.released:
                await self.barrier()
            await self.order()
        except Missing as missing:
            text = f"after {self.plan.timeout_s:g} s these ranks were missing: {missing}"
            (self.state / "failed").write_text(str(missing))
            self.notify()
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
