"""Barrier of a group: every rank resolves the names it needs, and the leader waits until all
ranks have joined.
"""

from __future__ import annotations

import asyncio
import random
import time

from gpuworker.group.group_state import GroupState
from gpuworker.group.rank_server import RankServer
from gpuworker.runtime.contract import GROUP_AGENT_PORT
from gpuworker.runtime.log import log

# in a larger group a rank resolves its own task and the first of each other; the leader resolves
# all
RESOLVE_ALL = 64
POLL_S = 0.25


class JoinTimeoutError(Exception):
    """The join timeout has passed; the message describes the missing ranks."""


def leader(server: RankServer) -> str:
    return server.plan.hosts[0]


async def wait_for_all(server: RankServer) -> None:
    """Wait until every rank has joined, or the group runs already. Raises JoinTimeoutError."""
    start = time.monotonic()
    end = start + server.plan.join_timeout_s
    joining = asyncio.create_task(
        run_leader(server) if server.host == leader(server) else run_follower(server, end)
    )
    others = rejoin(server), await_abort(server), await_end(server)
    tasks = [joining, *map(asyncio.create_task, others)]
    try:
        done, _ = await asyncio.wait(
            tasks, timeout=end + 2 - start, return_when=asyncio.FIRST_COMPLETED
        )
        for each in done:
            each.result()
        if not server.state.released and not ended(server):
            raise JoinTimeoutError(await describe_missing(server))
    finally:
        for each in tasks:
            each.cancel()
    log(
        "GROUP",
        rank=server.host,
        ranks=len(server.plan.hosts),
        released_after_s=time.monotonic() - start,
    )


async def run_leader(server: RankServer) -> None:
    unresolved = set(server.plan.hosts)
    while unresolved or server.joined < set(server.plan.hosts):
        unresolved -= (await server.peers.resolve_all(unresolved)).keys()
        if unresolved or server.joined < set(server.plan.hosts):
            await server.next_change(
                timeout=max(POLL_S, len(unresolved) / 100) if unresolved else 5
            )
    server.merge(GroupState(released=True))


async def run_follower(server: RankServer, end: float) -> None:
    names = {leader(server), *names_to_resolve(server)}
    addresses: dict[str, str] = {}
    while unresolved := names - addresses.keys():
        addresses |= await server.peers.resolve_all(unresolved)
        await asyncio.sleep(POLL_S if names - addresses.keys() else 0)
    while not server.state.released:
        # the leader has the complete list of missing ranks
        left = max(1.0, end + 1 - time.monotonic())
        reply = await server.peers.request(addresses[leader(server)], left, joined=True)
        if reply and reply.missing:
            raise JoinTimeoutError(reply.missing)
        if reply:
            server.merge(reply.state)
        else:
            await asyncio.sleep(POLL_S)
            addresses[leader(server)] = (
                await server.peers.resolve(leader(server)) or addresses[leader(server)]
            )


def names_to_resolve(server: RankServer) -> list[str]:
    if len(server.plan.hosts) <= RESOLVE_ALL:
        return server.plan.hosts
    return [*server.task.hosts, *(task.hosts[0] for task in server.plan.tasks.values())]


async def rejoin(server: RankServer) -> None:
    """For a rank whose pod was replaced: request the state of the others, a few at a time, until
    one is released.
    """
    others = [host for host in server.plan.hosts if host != server.host]
    pause = 1.0
    while not server.state.released and others:
        await asyncio.sleep(pause)
        pause = min(5.0, pause * 1.2)
        some = await server.peers.resolve_all(random.sample(others, min(3, len(others))))
        for reply in await asyncio.gather(*map(server.peers.request, some.values())):
            if reply:
                server.merge(reply.state)
    if not others:
        await asyncio.Event().wait()


async def await_abort(server: RankServer) -> None:
    """Raise JoinTimeoutError as soon as another rank's join timeout has passed."""
    while not server.missing:
        await server.next_change()
    raise JoinTimeoutError(server.missing)


async def await_end(server: RankServer) -> None:
    """Return when the group ends before all ranks have joined: the node of one is unfit."""
    while not ended(server):
        await server.next_change()


def ended(server: RankServer) -> bool:
    return bool(server.state.end_reason(server.host, server.plan))


async def describe_missing(server: RankServer) -> str:
    """Description of the ranks that have not joined, after a request to each rank that has not
    sent one.
    """
    addresses = await server.peers.resolve_all(server.plan.hosts)
    # Also in the leader: a rank that still resolves names has sent it no request.
    hosts = [host for host in addresses if host not in server.joined and host != server.host]
    replies = await asyncio.gather(*(server.peers.request(addresses[host]) for host in hosts))
    joined = server.joined | {
        host for host, reply in zip(hosts, replies, strict=True) if reply and reply.joined
    }
    missing = [host for host in server.plan.hosts if host not in joined and host != server.host]
    unresolved = [host for host in missing if host not in addresses]
    silent = [host for host in missing if host in addresses]
    return format_missing(unresolved, silent, leader(server))


def format_missing(unresolved: list[str], silent: list[str], leader: str = "") -> str:
    """`unresolved` ranks have no address, `silent` ranks have one and have not joined."""
    parts = []
    if unresolved:
        parts.append(
            f"no pod with an address for {', '.join(unresolved)} (not scheduled, or not created)"
        )
    if silent:
        parts.append(f"{', '.join(silent)} did not start (image pull? crash?)")
    return "; ".join(parts) or f"{leader}, the first rank, did not reply on port {GROUP_AGENT_PORT}"
