"""Server for the lines of other pods. Connections of strangers can neither take all file descriptors nor fill the log.

Standard library only.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Awaitable, Callable

WAITING = 1024  # connections that the kernel keeps until they are accepted
ACCEPTED = 16  # connections that asyncio accepts from a socket in one turn, before it reads from any
SPARE = 320  # descriptors for this process itself, and for connections that are being accepted or closed
FEWEST = 16  # strangers


class Strangers:
    """Connections of which it is not known yet who has opened them. Above `most`, the oldest is closed."""

    def __init__(self, most: int):
        self.most = most
        self.writers: dict[asyncio.StreamWriter, None] = {}  # the oldest first

    def add(self, writer: asyncio.StreamWriter) -> None:
        self.writers[writer] = None
        if len(self.writers) > self.most:
            oldest = next(iter(self.writers))
            del self.writers[oldest]
            oldest.transport.abort()

    def discard(self, writer: asyncio.StreamWriter) -> None:
        self.writers.pop(writer, None)


async def listen(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    address: str | None,
    port: int,
    line_limit: int,
    members: int,
    strangers: Strangers,
) -> asyncio.Server:
    """Start the server. `members` connections and the strangers share the descriptors that this process may have:
    the soft limit is raised, and `strangers.most` is lowered to what remains. Raises OSError.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = members + strangers.most + SPARE
    if 0 <= soft < wanted:
        soft = wanted if hard < 0 else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        strangers.most = max(FEWEST, soft - members - SPARE)
    asyncio.get_running_loop().set_exception_handler(_on_exception)
    server = await asyncio.start_server(serve, address, port, limit=line_limit, backlog=ACCEPTED)
    for each in server.sockets:  # asyncio has one number for both
        with socket.socket(fileno=os.dup(each.fileno())) as same:
            same.listen(WAITING)
    return server


def _on_exception(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Log nothing when there is no descriptor for a connection: asyncio tries again after a second."""
    if "socket.accept()" not in str(context.get("message")):
        loop.default_exception_handler(context)
