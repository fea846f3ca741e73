"""Node 0's side of the line between launchers: it calls the roll, keeps watch during the run, says how it ends.

Every node, node 0 too, is a client (member.py). Messages are lines of JSON: no pickle, and a stranger cannot look like
a launcher. First come the cards; then `go` with the id of this attempt; then heartbeats both ways until `end`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import secrets
import time

from gpuworker.launch import node_info as cards
from gpuworker.launch import root_cause
from gpuworker.launch.config import Plan
from gpuworker.launch.failure_causes import Verdict
from gpuworker.launch.network import free_port
from gpuworker.launch.root_cause import Peer
from gpuworker.runtime.log import log

MAGIC, BEAT_S, LINE = "ddp-launch/1", 1.0, 1 << 20
# How long the verdict is kept for pods that start a little later than the one whose fault ended it all, and how long
# after the deadline.
LINGER_S, LATE_S = 4, 1


def encode(message: dict) -> bytes:
    return json.dumps(message).encode() + b"\n"


def decode(line: bytes) -> dict:
    """A message, or {} if it is none."""
    with contextlib.suppress(ValueError):
        message = json.loads(line)
        return message if isinstance(message, dict) else {}
    return {}


class Lead:
    def __init__(self, plan: Plan, end: float):
        self.plan, self.deadline = plan, end
        self.peers: dict[int, Peer] = {}
        self.twice: tuple[Peer, Peer, float] | None = None
        self.gone: dict[int, str] = {}  # lost while the run was on -> how
        self.started = 0.0  # when `go` was said
        self.odd_at = self.failed_at = self.stopped_at = 0.0
        self.stopper, self.asked = "", False
        self.ended: dict | None = None
        self.told: set[int] = set()
        self.server: asyncio.Server | None = None
        self.watcher: asyncio.Task | None = None

    async def serve(self) -> None:
        now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if 0 <= now < self.plan.nodes + 100 <= most:  # a line to each of thousands of nodes
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.plan.nodes + 100, most))
        try:
            self.server = await asyncio.start_server(self.answer, None, self.plan.roll_port, limit=LINE, backlog=1024)
        except OSError as error:
            why = f"port {self.plan.roll_port} is taken on node 0 ({error.strerror})"
            raise Verdict("port-taken", why, "preflight") from None
        if self.plan.backend != "etcd":
            free_port(self.plan.port)
        self.watcher = asyncio.create_task(self.watch())

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = index = None
        try:
            hello = decode(await asyncio.wait_for(reader.readline(), 10))
            if hello.get("hello") != MAGIC:
                return
            if hello["run"] != self.plan.run_id:
                writer.write(encode({"refused": self.plan.run_id}))
                return
            peer, index = Peer(hello["card"], writer, time.monotonic()), int(hello["card"]["node"])
            peer.card["skew"] = peer.card["clock"] - time.time()
            if self.ended:
                writer.write(encode({"end": self.ended}))
                self.told.add(index)
                return
            if self.started:  # a pod that came back alone; the others must come back too
                writer.write(encode({"refused": f"{self.plan.run_id}, which runs without it since its restart"}))
                return
            if index in self.peers and self.peers[index].card["pod"] != peer.card["pod"]:
                self.twice = (self.peers[index], peer, time.monotonic())
            self.peers[index] = peer
            if problem := peer.card.get("problem"):
                self.finish(problem)
            writer.write(encode({"end": self.ended} if self.ended else {"welcome": self.missing()}))
            while line := await reader.readline():
                peer.seen = time.monotonic()
                self.hear(index, peer, decode(line))
        except (asyncio.TimeoutError, asyncio.CancelledError, OSError, ValueError, KeyError, TypeError):
            pass  # a stranger, a line that was cut, or the end of the run
        finally:
            writer.close()
            if peer and self.peers.get(index) is peer and not self.ended:
                if not self.started:
                    del self.peers[index]  # it may come again until the deadline
                elif peer.state in ("here", "formed") and not peer.report:
                    self.gone.setdefault(index, "closed the line without a word")

    def hear(self, index: int, peer: Peer, message: dict) -> None:
        if "failed" in message:
            peer.report = peer.report or {**message["failed"], "at": time.monotonic()}
            self.failed_at = self.failed_at or time.monotonic()
            if not self.asked:
                self.asked = True
                self.tell({"where": True})
        elif "where" in message:
            peer.where |= message["where"]
        elif "stopping" in message and not self.stopped_at:
            self.stopped_at, self.stopper = time.monotonic(), f"{cards.who(peer.card)} got {message['stopping']}"
            self.tell({"stop": self.stopper})
        elif "state" in message:
            peer.state = message["state"]

    async def watch(self) -> None:
        beaten, looked = 0.0, time.monotonic()
        while not self.ended:
            await asyncio.sleep(0.1)
            now = time.monotonic()
            if now - looked > 5 * BEAT_S:  # this process itself was frozen, so nobody could be heard
                for peer in self.peers.values():
                    peer.seen = now
            looked = now
            if now - beaten > BEAT_S:
                beaten = now
                self.tell({"beat": self.missing() if not self.started else []})
            try:
                self.run_phase(now) if self.started else self.roll_call(now)
            except Verdict as verdict:
                self.finish(verdict.data())
            except Exception as error:  # a card that is not as it should be; without this watch all would wait
                self.finish(Verdict("launcher", f"node 0: {type(error).__name__}: {error}").data())

    def missing(self) -> list[int]:
        return [index for index in range(self.plan.nodes) if index not in self.peers]

    def roll_call(self, now: float) -> None:
        if self.twice and now - self.twice[2] > 3 * BEAT_S:
            old, new, since = self.twice
            if old.seen > since and new.seen > since:
                both = " and ".join(cards.who(peer.card) for peer in (old, new))
                raise Verdict("twice", f"{both} claim the same index", "preflight")
            self.twice = None
        there = [self.peers[index].card for index in sorted(self.peers)]
        # Nodes that disagree about the plan may never be complete; a moment later most of those that come have come.
        if any((c["nodes"], c["processes"]) != (self.plan.nodes, self.plan.processes) for c in there):
            self.odd_at = self.odd_at or now
            if now > self.odd_at + 2 * BEAT_S:
                cards.compare(self.plan, there)
        if not self.missing() and not self.twice:
            cards.compare(self.plan, there)
            self.started = now
            for card in there if self.plan.debug else []:
                log("DEBUG", **card)
            attempt = f"{self.plan.run_id}-{self.plan.attempt}-{secrets.token_hex(4)}"
            self.tell({"go": {"id": attempt, "attempt": self.plan.attempt}})
        elif now > self.deadline:
            missing = self.missing()
            names = ", ".join(f"node {index}" for index in missing[:20]) + (", …" if len(missing) > 20 else "")
            why = (
                f"{names} did not come within {self.plan.seconds['deadline']} s; {len(there)} of {self.plan.nodes} came"
            )
            raise Verdict("missing", why, "preflight")

    def run_phase(self, now: float) -> None:
        silence = self.plan.seconds["silence"]
        for index, peer in self.peers.items():
            if peer.state in ("here", "formed") and now - peer.seen > silence:
                self.gone.setdefault(index, f"was not heard of for {silence} s")
        states = {"stopped" if peer.report else peer.state for peer in self.peers.values()}
        if states == {"done"}:
            self.finish({"key": "done", "why": "", "phase": "run"})
        elif self.stopped_at:
            # The programs' own grace is over before this; a node that says nothing has not saved.
            if states <= {"done", "saved", "stopped"} or now > self.stopped_at + self.plan.seconds["grace"] + 2:
                raise root_cause.stopped(self.stopper, self.peers)
        elif self.failed_at or self.gone:
            self.failed_at = self.failed_at or now
            if verdict := root_cause.failed(self.peers, self.gone, now - self.failed_at):
                raise verdict
        elif now > self.started + self.plan.seconds["join"] and (late := self.unformed()):
            names = ", ".join(cards.who(peer.card) for peer in late[:8])
            raise Verdict("not-formed", f"{names} formed no world within {self.plan.seconds['join']} s", "rendezvous")

    def unformed(self) -> list[Peer]:
        return [peer for peer in self.peers.values() if peer.state == "here"]

    def tell(self, message: dict) -> None:
        displaced = [self.twice[0]] if self.twice else []
        for peer in [*self.peers.values(), *displaced]:
            with contextlib.suppress(OSError, RuntimeError):  # its line is closed
                peer.writer.write(encode(message))

    def finish(self, verdict: dict) -> None:
        """The first verdict is everyone's."""
        if not self.ended:
            self.ended = verdict
            self.told = set(self.peers)
            self.tell({"end": verdict})

    async def close(self) -> None:
        """Let every node read its verdict before this process is gone; those that are just starting, too."""
        end = min(time.monotonic() + LINGER_S, self.deadline + LATE_S)
        while self.ended and not self.started and len(self.told) < self.plan.nodes and time.monotonic() < end:
            await asyncio.sleep(0.1)
        for part, end in ((self.server, "close"), (self.watcher, "cancel")):
            if part:
                getattr(part, end)()
        for peer in list(self.peers.values()):
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(peer.writer.drain(), 1)
                peer.writer.write_eof()
