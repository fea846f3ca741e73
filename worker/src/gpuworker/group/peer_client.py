"""Client of the other agents of a group: name resolution, and one request and reply per
connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import Iterable

from gpuworker.group.protocol import CODEC, PURPOSE, Reply, Request
from gpuworker.runtime.contract import GROUP_AGENT_PORT
from gpuworker.runtime.json_lines import encode
from gpuworker.runtime.message_auth import LineStream

REQUEST_TIMEOUT_S = 3
MAX_CONCURRENT_REQUESTS = 32


class PeerClient:
    """The other ranks of a group, by host name. `sender` has the fields that every request of this
    rank carries; `line_limit` is the size of the longest reply in bytes; `key` signs all lines."""

    def __init__(self, domain: str, sender: Request, line_limit: int, key: bytes):
        self.domain, self.sender, self.line_limit, self.key = domain, sender, line_limit, key
        self.gate = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)

    async def addresses(self, name: str) -> list[str]:
        """Addresses of a name in DNS. The trailing dot keeps the resolver from trying its search
        list.
        """
        async with self.gate:
            with contextlib.suppress(OSError, UnicodeError, asyncio.TimeoutError):
                lookup = asyncio.get_running_loop().getaddrinfo(
                    f"{name}.", None, proto=socket.IPPROTO_TCP
                )
                return sorted({entry[4][0] for entry in await asyncio.wait_for(lookup, 10)})
        return []

    async def resolve(self, host: str) -> str | None:
        """The address of a rank, or None if it has none now."""
        return next(iter(await self.addresses(f"{host}.{self.domain}")), None)

    async def resolve_all(self, hosts: Iterable[str]) -> dict[str, str]:
        hosts = list(hosts)
        addresses = await asyncio.gather(*map(self.resolve, hosts))
        return {host: address for host, address in zip(hosts, addresses, strict=True) if address}

    async def request(
        self, address: str, timeout: float = REQUEST_TIMEOUT_S, **fields: object
    ) -> Reply | None:
        """The reply of the agent at `address`; None if there is none, or it is of another group
        or attempt.
        """
        with contextlib.suppress(OSError, ValueError, asyncio.TimeoutError):
            reply = await asyncio.wait_for(
                self._exchange(address, dataclasses.replace(self.sender, **fields)), timeout
            )
            if isinstance(reply, Reply):
                return reply
        return None

    async def _exchange(self, address: str, request: Request) -> object:
        reader, writer = await asyncio.open_connection(
            address, GROUP_AGENT_PORT, limit=self.line_limit
        )
        try:
            stream = LineStream(reader, writer, self.key, PURPOSE)
            await stream.start(client=True)
            stream.write(encode(request))
            return CODEC.decode(await stream.readline())
        finally:
            writer.close()

    async def broadcast(self, hosts: Iterable[str], **fields: object) -> dict[str, Reply]:
        """Send a request to every host; returns the replies."""

        async def send(host: str) -> Reply | None:
            address = await self.resolve(host)
            if not address:
                return None
            async with self.gate:
                return await self.request(address, **fields)

        hosts = list(hosts)
        replies = await asyncio.gather(*map(send, hosts))
        return {host: reply for host, reply in zip(hosts, replies, strict=True) if reply}
