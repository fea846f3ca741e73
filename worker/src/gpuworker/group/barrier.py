"""Every rank of a group or none: each resolves the names it needs, and the first rank hears from all others."""

from __future__ import annotations

import asyncio
import random
import time

from gpuworker.group.group_state import Facts
from gpuworker.group.peers import PORT
from gpuworker.group.rank_server import Member
from gpuworker.runtime.log import log

RESOLVE_ALL = 64  # in a larger group a rank resolves its own task and the first of each other; the leader resolves all
POLL_S = 0.25


class Missing(Exception):
    """The deadline passed; the message names the missing ranks."""


def leader(member: Member) -> str:
    return member.plan.hosts[0]


async def gather(member: Member) -> None:
    """Until every rank is here, or the group runs already. Raises Missing at the deadline."""
    start = time.monotonic()
    end = start + member.plan.timeout_s
    calling = asyncio.create_task(lead(member) if member.me == leader(member) else follow(member, end))
    tasks = [calling, asyncio.create_task(recall(member)), asyncio.create_task(given_up(member))]
    try:
        done, _ = await asyncio.wait(tasks, timeout=end + 2 - start, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
        if not member.facts.released:
            raise Missing(await missing(member))
    finally:
        for each in tasks:
            each.cancel()
    log("GROUP", rank=member.me, ranks=len(member.plan.hosts), together_after_s=time.monotonic() - start)


async def lead(member: Member) -> None:
    waiting = set(member.plan.hosts)
    while waiting or member.here < set(member.plan.hosts):
        waiting -= (await member.peers.resolve_all(waiting)).keys()
        if waiting or member.here < set(member.plan.hosts):
            await member.next_change(timeout=max(POLL_S, len(waiting) / 100) if waiting else 5)
    member.learn({**Facts().data(), "released": True})


async def follow(member: Member, end: float) -> None:
    names = {leader(member), *needed(member)}
    addresses: dict[str, str] = {}
    while unknown := names - addresses.keys():
        addresses |= await member.peers.resolve_all(unknown)
        await asyncio.sleep(POLL_S if names - addresses.keys() else 0)
    while not member.facts.released:
        left = max(1.0, end + 1 - time.monotonic())  # the leader knows better who is missing
        answer = await member.peers.ask(addresses[leader(member)], {"here": True}, left)
        if answer and "missing" in answer:
            raise Missing(answer["missing"])
        if answer:
            member.learn(answer["facts"])
        else:
            await asyncio.sleep(POLL_S)
            addresses[leader(member)] = await member.peers.resolve(leader(member)) or addresses[leader(member)]


def needed(member: Member) -> list[str]:
    if len(member.plan.hosts) <= RESOLVE_ALL:
        return member.plan.hosts
    return [*member.task.hosts, *(task.hosts[0] for task in member.plan.tasks.values())]


async def recall(member: Member) -> None:
    """A rank that comes back asks the others, few at a time, whether the group runs already."""
    others = [host for host in member.plan.hosts if host != member.me]
    pause = 1.0
    while not member.facts.released and others:
        await asyncio.sleep(pause)
        pause = min(5.0, pause * 1.2)
        some = await member.peers.resolve_all(random.sample(others, min(3, len(others))))
        for answer in await asyncio.gather(*(member.peers.ask(address, {}) for address in some.values())):
            if answer:
                member.learn(answer["facts"])
    if not others:
        await asyncio.Event().wait()


async def given_up(member: Member) -> None:
    """Another rank's deadline has passed."""
    while not member.given_up:
        await member.next_change()
    raise Missing(member.given_up)


async def missing(member: Member) -> str:
    """Which ranks are not here, as the leader knows it, or as this rank can find out."""
    addresses = await member.peers.resolve_all(member.plan.hosts)
    here = set(member.here)
    if member.me != leader(member):
        hosts = [host for host in addresses if host != member.me]
        answers = await asyncio.gather(*(member.peers.ask(addresses[host], {}) for host in hosts))
        here |= {host for host, answer in zip(hosts, answers, strict=True) if answer and answer["here"]}
    absent = [host for host in member.plan.hosts if host not in here and host != member.me]
    nowhere = [host for host in absent if host not in addresses]
    silent = [host for host in absent if host in addresses]
    parts = []
    if nowhere:
        parts.append(f"no pod with an address for {', '.join(nowhere)} (not scheduled, or not created)")
    if silent:
        parts.append(f"{', '.join(silent)} did not start (image pull? crash?)")
    return "; ".join(parts) or f"{leader(member)}, the first rank, did not answer on port {PORT}"
