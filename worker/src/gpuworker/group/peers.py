"""What ranks say to each other: one JSON line there, one back, on PORT."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterable

PORT = 29499
LINE_LIMIT = 1 << 20  # bytes; facts about 10,000 ranks fit
QUESTION_S = 3  # how long one question may take
AT_ONCE = 32  # questions under way


class Peers:
    """The other ranks of a group, by host name."""

    def __init__(self, domain: str, identity: dict):
        self.domain, self.identity = domain, identity
        self.gate = asyncio.Semaphore(AT_ONCE)

    async def addresses(self, name: str) -> list[str]:
        """What DNS says now; the trailing dot keeps the resolver from trying its search list."""
        async with self.gate:
            with contextlib.suppress(OSError, UnicodeError, asyncio.TimeoutError):
                lookup = asyncio.get_running_loop().getaddrinfo(f"{name}.", None, proto=socket.IPPROTO_TCP)
                return sorted({entry[4][0] for entry in await asyncio.wait_for(lookup, 10)})
        return []

    async def resolve(self, host: str) -> str | None:
        """The address of a rank, if it has one now."""
        return next(iter(await self.addresses(f"{host}.{self.domain}")), None)

    async def resolve_all(self, hosts: Iterable[str]) -> dict[str, str]:
        hosts = list(hosts)
        addresses = await asyncio.gather(*map(self.resolve, hosts))
        return {host: address for host, address in zip(hosts, addresses, strict=True) if address}

    async def ask(self, address: str, message: dict, timeout: float = QUESTION_S) -> dict | None:
        """The answer of the rank there; None if there is none, or it is of another group or attempt."""
        with contextlib.suppress(OSError, ValueError, asyncio.TimeoutError, asyncio.LimitOverrunError):
            answer = await asyncio.wait_for(self._exchange(address, {**self.identity, **message}), timeout)
            if isinstance(answer, dict) and "facts" in answer:
                return answer
        return None

    async def _exchange(self, address: str, message: dict) -> object:
        reader, writer = await asyncio.open_connection(address, PORT, limit=LINE_LIMIT)
        try:
            writer.write(json.dumps(message).encode() + b"\n")
            return json.loads(await reader.readline())
        finally:
            writer.close()

    async def tell(self, hosts: Iterable[str], message: dict) -> list[str]:
        """Tell `hosts` something; returns those that did not answer."""

        async def one(host: str) -> str | None:
            address = await self.resolve(host)
            if not address:
                return host
            async with self.gate:
                return None if await self.ask(address, message) else host

        return [host for host in await asyncio.gather(*map(one, hosts)) if host]
