"""Server for the lines of other pods. Connections of strangers can neither take all file
descriptors nor fill the log.

The bound on them is also that of the HTTP servers.

Standard library only.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

WAITING = 1024  # connections that the kernel keeps until they are accepted
# connections that asyncio accepts from a socket in one turn, before it reads from any
ACCEPTED = 16
# descriptors for this process itself, and for connections that are being accepted or closed
SPARE = 320
FEWEST = 16  # strangers

Connection = TypeVar("Connection")


class Newest(Generic[Connection]):
    """Open connections. Above `most`, the oldest is closed. Safe for several threads."""

    def __init__(self, most: int, close: Callable[[Connection], object]):
        self.most, self.close = most, close
        self.lock = threading.Lock()
        self.connections: dict[Connection, None] = {}  # the oldest first

    def add(self, connection: Connection) -> None:
        with self.lock:
            self.connections[connection] = None
            if len(self.connections) > self.most:
                oldest = next(iter(self.connections))
                del self.connections[oldest]
                self.close(oldest)

    def discard(self, connection: Connection) -> None:
        with self.lock:
            self.connections.pop(connection, None)

    def make_room(self, members: int = 0) -> None:
        """`members` further connections share the descriptors that this process may have: the soft
        limit is raised, and `most` is lowered to what remains.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = members + self.most + SPARE
        if 0 <= soft < wanted:
            soft = wanted if hard < 0 else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            self.most = max(FEWEST, soft - members - SPARE)


class Strangers(Newest[asyncio.StreamWriter]):
    """Connections of which it is not known yet who has opened them."""

    def __init__(self, most: int):
        super().__init__(most, lambda writer: writer.transport.abort())


async def listen(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    address: str | None,
    port: int,
    line_limit: int,
    members: int,
    strangers: Strangers,
) -> asyncio.Server:
    """Start the server, for `members` and strangers. Raises OSError."""
    strangers.make_room(members)
    asyncio.get_running_loop().set_exception_handler(_on_exception)
    server = await asyncio.start_server(serve, address, port, limit=line_limit, backlog=ACCEPTED)
    for each in server.sockets:  # asyncio has one number for both
        with socket.socket(fileno=os.dup(each.fileno())) as same:
            same.listen(WAITING)
    return server


def _on_exception(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Log nothing when there is no descriptor for a connection: asyncio tries again after a
    second.
    """
    if "socket.accept()" not in str(context.get("message")):
        loop.default_exception_handler(context)
