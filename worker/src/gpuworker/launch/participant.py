"""A node's side of the line to node 0."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from gpuworker.launch.config import Plan
from gpuworker.launch.coordinator import BEAT_S, LINE, MAGIC, decode, encode
from gpuworker.launch.failure_causes import Verdict
from gpuworker.launch.network import look_up, why_not


class Member:
    """`go` and `end` are what node 0 says once; `on` handles its other words."""

    def __init__(self, plan: Plan, card: dict, address: str, on: dict[str, Callable[[object], None]]):
        self.plan, self.card, self.address, self.on = plan, card, address, on
        self.go: asyncio.Future[dict] = asyncio.get_running_loop().create_future()
        self.end: asyncio.Future[dict] = asyncio.get_running_loop().create_future()
        self.writer: asyncio.StreamWriter | None = None
        self.missing: list[int] = []
        self.heard = 0.0

    async def join(self, deadline: float) -> dict:
        """Meet node 0, post the card, wait for all others."""
        self.why = ("refused", "was not reached")
        self.living = asyncio.create_task(self.live(deadline))
        waits = {self.go, self.end, self.living}
        await asyncio.wait(waits, timeout=deadline - time.monotonic() + 1, return_when=asyncio.FIRST_COMPLETED)
        if self.end.done():
            raise told(self.end.result())
        if self.go.done():
            return self.go.result()
        if self.heard:  # node 0 has our card, and others are missing
            names = ", ".join(f"node {index}" for index in self.missing[:20]) or "node 0"
            why = f"{names} did not come within {self.plan.seconds['deadline']} s"
            raise Verdict("missing", why, "preflight")
        key, words = self.why
        where = f"node 0 at {self.plan.master} ({self.address}) port {self.plan.roll_port}"
        raise Verdict(key, f"{where} {words}, for {self.plan.seconds['deadline']} s", "preflight")

    async def live(self, deadline: float) -> None:
        """Keep a line to node 0: before `go` it may be made again and again, after it its end is the run's."""
        while True:
            await self.one_line(max(1.0, min(5.0, deadline - time.monotonic())))
            if self.go.done():
                await asyncio.sleep(1)  # node 0's last word may be in the other tasks' hands
                if not self.end.done():
                    self.end.set_result({"key": "lost", "why": "node 0 closed the line without a word", "phase": "run"})
                return
            self.heard = 0.0
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(0.3)
            # Node 0 may be another pod by now, or its name was that of the pod before when this node asked.
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                self.address = await asyncio.wait_for(look_up(self.plan.master), 1)

    async def one_line(self, patience_s: float) -> None:
        writer = None
        try:
            try:
                connecting = asyncio.open_connection(self.address, self.plan.roll_port, limit=LINE)
                reader, writer = await asyncio.wait_for(connecting, patience_s)
            except (OSError, asyncio.TimeoutError) as error:
                self.why = why_not(error, None)
                return
            self.card["clock"] = time.time()
            writer.write(encode({"hello": MAGIC, "run": self.plan.run_id, "card": self.card}))
            try:
                first = await asyncio.wait_for(reader.readline(), patience_s)
            except asyncio.TimeoutError:
                self.why = why_not(None, None)
                return
            except (OSError, ValueError) as error:
                self.why = why_not(error, b"?")
                return
            if "refused" in (answer := decode(first)):
                self.why = ("other-run", f"belongs to the run {answer['refused']!r}, this is {self.plan.run_id!r}")
                return
            if not answer.keys() & {"welcome", "end"}:
                self.why = why_not(None, first)
                return
            self.writer = writer
            self.hear(answer)
            beating = asyncio.create_task(self.beat())
            with contextlib.suppress(OSError, ValueError):
                while line := await reader.readline():
                    self.hear(decode(line))
            beating.cancel()
        finally:
            self.writer = None
            if writer:
                writer.close()

    def hear(self, message: dict) -> None:
        self.heard = time.monotonic()
        for word, value in message.items():
            if word in ("welcome", "beat"):
                self.missing = value
            elif word in ("go", "end"):
                future = self.go if word == "go" else self.end
                if not future.done():
                    future.set_result(value)
            elif word in self.on:
                self.on[word](value)

    async def beat(self) -> None:
        silence = self.plan.seconds["silence"]
        while True:
            self.say({"beat": True})
            await asyncio.sleep(BEAT_S)
            if self.go.done() and time.monotonic() - self.heard > silence and not self.end.done():
                self.end.set_result({"key": "lost", "why": f"node 0 was not heard of for {silence} s", "phase": "run"})

    def say(self, message: dict) -> None:
        if self.writer:
            with contextlib.suppress(OSError, RuntimeError):
                self.writer.write(encode(message))

    async def close(self) -> None:
        if self.writer:
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(self.writer.drain(), 1)


def told(end: dict) -> Verdict:
    """The verdict that node 0 has sent."""
    return Verdict(end["key"], end["why"], end["phase"])
