"""One rank as the others know it: what it has learned, and what it answers when they call."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

from gpuworker.group import peers as net
from gpuworker.group.group_state import Facts, Plan


class Member:
    """`me` is this rank's host, TASK-RANK; `stores` are folders that keep what it has learned."""

    def __init__(self, plan: Plan, me: str, state: Path, stores: list[Path], run: str, attempt: str):
        self.plan, self.me, self.state, self.run, self.attempt, self.stores = plan, me, state, run, attempt, stores
        self.task = plan.task_of(me)
        self.facts = Facts()
        # Which tasks' containers are known to run: this one's, and in the leader those of all that have called.
        self.here: set[str] = {me} if (state / "here").exists() else set()
        self.given_up = ""  # the barrier's deadline has passed; which ranks were missing
        self.changed = asyncio.Event()
        self.peers = net.Peers(plan.domain, {"run": run, "attempt": attempt, "rank": me})
        for store in stores:
            store.mkdir(parents=True, exist_ok=True)
            for file in store.glob("*.json"):
                with contextlib.suppress(OSError, ValueError, KeyError):
                    self.facts.merge(json.loads(file.read_text()), plan.hosts)

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
        if "missing" in question:
            self.given_up = str(question["missing"])
            self.notify()
        if question.get("here") and question["rank"] in self.plan.hosts:
            name = question["rank"]
            if name not in self.here:
                self.here.add(name)
                self.notify()
            left = asyncio.create_task(reader.read())  # ends when the caller goes away
            while not (self.facts.released or left.done() or self.given_up):
                await self.next_change(left)
            left.cancel()
        answer = {"facts": self.facts.data(), "here": self.me in self.here}
        if self.given_up:
            answer["missing"] = self.given_up
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
