r"""group-agent: sidecar of every rank of a group.

  group-agent --plan /group/scripts/group.json --host trainer-0 --state-dir /group/state

It holds the task at the barrier until every rank has joined: its image is pulled, its container
runs and its name resolves. At the join timeout it lists the missing ranks. Afterwards it keeps the
state of the group: for a rank whose pod was replaced, for dependencies between tasks, for the end
of auxiliary tasks, and for a failure that ends the group. It needs no access to the Kubernetes API.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

from gpuworker.group.barrier import RESOLVE_ALL, JoinTimeoutError, wait_for_all
from gpuworker.group.entry_pipes import EntryPipes
from gpuworker.group.group_state import GroupPlan, GroupState
from gpuworker.group.protocol import EntryEvent, Pipe
from gpuworker.group.rank_server import RankServer
from gpuworker.runtime.command_line import escape_output, first_line
from gpuworker.runtime.contract import GROUP_AGENT_PORT, ExitCode
from gpuworker.runtime.line_server import listen
from gpuworker.runtime.log import log
from gpuworker.runtime.message_auth import KeyFileError, load_key
from gpuworker.runtime.plain_files import replace_plain

RETRY_S, LONGEST_RETRY_S = 1, 5  # between two requests to a rank that has not replied
LAST_S = 20  # how long the agent stays at the pod's end for ranks that have not replied


class Agent(RankServer):
    """Sidecar of one rank. `folder` is shared with its entry script."""

    def __init__(
        self, plan: GroupPlan, host: str, folder: Path, run: str, attempt: str, key: bytes
    ):
        super().__init__(plan, host, folder, run, attempt, key)
        self.pipes = EntryPipes(folder)
        self.silent: set[str] = set()  # ranks that must still get the state

    async def run_forever(self, address: str | None = None) -> None:
        """Serve until cancelled. `address`: the address to listen on, all if None."""
        members, limit = len(self.plan.hosts), self.plan.line_limit
        await listen(self.serve, address, GROUP_AGENT_PORT, limit, members, self.strangers)
        await asyncio.gather(self.read_events(), self.control_task(), self.send_again())

    async def read_events(self) -> None:
        async for line in self.pipes.events():
            await self.on_line(line)

    async def on_line(self, line: str) -> None:
        event, _, code = line.partition(" ")
        with contextlib.suppress(ValueError):  # the task may write there, too
            await self.on_event(event, code)

    async def on_event(self, event: str, code: str) -> None:
        if event == EntryEvent.JOINED and self.host not in self.joined:
            self.joined.add(self.host)
            self.notify()
        elif event == EntryEvent.STARTED:
            self.merge(GroupState(started=[self.host]))
            await self.send_state(self.dependents() | set(self.task.hosts))
        elif event == EntryEvent.RESULT:
            self.merge(
                GroupState(done=[self.host])
                if code == "0"
                else GroupState(failed={self.host: int(code)})
            )
            await self.send_state(self.dependents() | self.ranks_that_need_the_result())
            self.pipes.send(Pipe.ACK, "ack")

    def dependents(self) -> set[str]:
        return {
            host
            for task in self.plan.tasks.values()
            if self.task.name in task.depends_on
            for host in task.hosts
        }

    def ranks_that_need_the_result(self) -> set[str]:
        """Auxiliaries end with the primaries, a failure concerns every rank, and a rank that failed
        may wait for all. In a small group every rank gets the result, so that a rank that rejoins
        can request it from any of them.
        """
        hosts = set(self.plan.hosts)
        if self.state.failed or not self.plan.stop_on_failure or len(hosts) <= RESOLVE_ALL:
            return hosts
        return hosts - set(self.plan.primaries)

    async def send_state(self, hosts: set[str]) -> None:
        """Send the state to the hosts, twice if one is silent. send_again() then goes on."""
        self.silent |= hosts - {self.host}
        for _ in range(2):
            await self.send_to_silent()

    async def send_to_silent(self) -> None:
        self.silent -= set(self.state.done)
        replies = await self.peers.broadcast(set(self.silent), state=self.state)
        self.silent -= replies.keys()
        for reply in replies.values():  # a rank whose pod was replaced learns what the others know
            self.merge(reply.state)

    async def send_again(self) -> None:
        """The network of this pod may be away just when its task ends."""
        pause = RETRY_S
        while True:
            await asyncio.sleep(pause)
            pause = min(LONGEST_RETRY_S, 1.5 * pause) if self.silent else RETRY_S
            await self.send_to_silent()

    async def end(self, running: asyncio.Task) -> None:
        """End run_forever(), at once if no rank waits for the state."""
        end = time.monotonic() + LAST_S
        for line in self.pipes.unseen():  # the task may have removed the pipe
            await self.on_line(line)
        while self.silent and time.monotonic() < end:
            await asyncio.sleep(0.1)
        running.cancel()

    async def control_task(self) -> None:
        """Hold the task at the barrier, start it, and end it when the group ends."""
        while self.host not in self.joined:
            await self.next_change()
        try:
            if not self.state.released:
                await wait_for_all(self)
        except JoinTimeoutError as error:
            await self.abort(str(error))
            return
        await self.wait_for_dependencies()
        addresses = await self.peers.resolve_all(self.task.hosts)
        lines = [addresses.get(host, f"{host}.{self.plan.domain}") for host in self.task.hosts]
        try:
            replace_plain(self.folder / "node_ips", ("\n".join(lines) + "\n").encode())
        except OSError as error:  # a task that has started does not read the answer
            self.pipes.send(Pipe.START, f"fail {ExitCode.FAILED:d} not started: {error}")
        reason = self.state.end_reason(self.host, self.plan)
        if reason is None:
            self.pipes.send(Pipe.START, "run")
        elif reason == "done":  # the group ended before this task began
            self.pipes.send(Pipe.START, reason)
        else:
            self.pipes.send(Pipe.START, f"fail {ExitCode.FAILED:d} not started: {reason}")
        answered = False
        while reason is None:
            if not answered and (answer := self.state.after_setup(self.task)):
                self.pipes.send(Pipe.AFTER_SETUP, answer)
                answered = True
            await self.next_change()
            reason = self.state.end_reason(self.host, self.plan)
        # others may have been stopped, and failed, because of it
        own_code = self.state.failed.get(self.host)
        log("GROUP", rank=self.host, end=f"failed {self.host} {own_code}" if own_code else reason)
        self.pipes.send(Pipe.END, reason)

    async def abort(self, missing: str) -> None:
        text = f"after {self.plan.join_timeout_s:g} s these ranks were missing: {missing}"
        if not self.missing:
            self.missing = missing
            self.notify()
            # All ranks abort together: for the others, one that ends first would be missing, too.
            await self.peers.broadcast(set(self.plan.hosts) - {self.host}, missing=missing)
        log("FATAL", exit_code=int(ExitCode.NODE_MISSING), why=text)
        self.pipes.send(Pipe.START, f"fail {ExitCode.NODE_MISSING:d} {text}")

    async def wait_for_dependencies(self) -> None:
        start = last_log = time.monotonic()
        while (
            pending := self.state.pending_dependencies(self.task, self.plan)
            or await self.not_ready()
        ):
            if self.state.end_reason(self.host, self.plan):
                return
            if time.monotonic() - last_log > 60:
                last_log = time.monotonic()
                log(
                    "GROUP",
                    rank=self.host,
                    waits_for=", ".join(f"{task} {state}" for task, state in pending.items()),
                )
            await self.next_change(timeout=1)
        if self.task.depends_on:
            log("GROUP", rank=self.host, dependencies_met_after_s=time.monotonic() - start)

    async def not_ready(self) -> dict[str, str]:
        """Dependencies on `ready` that are not met. Each such task has a Service that publishes
        only ready pods.
        """
        pending = {}
        for name, state in self.task.depends_on.items():
            if state == "ready" and not set(self.plan.tasks[name].hosts) <= set(self.state.done):
                service = f"{self.run}-{name}.{self.plan.domain.partition('.')[2]}"
                if len(await self.peers.addresses(service)) < len(self.plan.tasks[name].hosts):
                    pending[name] = state
        return pending


def refuse_start(folder: Path, why: str) -> None:
    """End the task instead of starting it, and stay until the pod ends: a sidecar that ends is only
    started again.
    """
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    log("FATAL", exit_code=int(ExitCode.USAGE), why=why)
    pipes = EntryPipes(folder)
    pipes.send(Pipe.START, f"fail {ExitCode.USAGE:d} {why}")
    signal.sigwait(ends)


def main() -> None:
    escape_output()
    parser = argparse.ArgumentParser(prog="group-agent", description=first_line(__doc__))
    parser.add_argument("--plan", type=Path, required=True, help="the group, as JSON")
    parser.add_argument("--host", required=True, help="host name of this rank, TASK-RANK")
    parser.add_argument("--state-dir", type=Path, required=True, help="folder shared with the task")
    args = parser.parse_args()
    run_id, attempt = os.environ.get("RUN_ID", "run"), os.environ.get("ATTEMPT", "0")
    plan = GroupPlan.load(args.plan)
    try:
        key = load_key()
    except KeyFileError as error:
        refuse_start(args.state_dir, str(error))
        return
    log(
        "GROUP",
        rank=args.host,
        run=run_id,
        attempt=attempt,
        ranks=len(plan.hosts),
        join_timeout_s=plan.join_timeout_s,
    )

    async def run() -> None:
        agent = Agent(plan, args.host, args.state_dir, run_id, attempt, key)
        running = asyncio.create_task(agent.run_forever())
        endings = []  # keeps them alive

        def end() -> None:
            endings.append(asyncio.create_task(agent.end(running)))

        # the kubelet ends a sidecar after the task's container
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, end)
        with contextlib.suppress(asyncio.CancelledError):
            await running

    asyncio.run(run())


if __name__ == "__main__":
    main()
