"""Named pipes between the agent and the entry script, in a folder that both containers mount."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from gpuworker.group.protocol import Pipe

HISTORY = "events.sent"  # file with every line that the entry script has sent


class EntryPipes:
    """The agent's ends of the pipes; the entry script creates missing ones, too."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.held: list[int] = []
        for pipe in Pipe:
            self.create(pipe.value)

    def create(self, name: str) -> Path:
        with contextlib.suppress(FileExistsError):  # the entry script was first
            os.mkfifo(self.folder / name)
            os.chmod(self.folder / name, 0o666)  # the task may run as another user
        return self.folder / name

    async def events(self) -> AsyncIterator[str]:
        """Lines from the entry script; first those that it sent to this container before a restart."""
        with contextlib.suppress(OSError):
            for line in (self.folder / HISTORY).read_text(errors="replace").splitlines():
                yield line
        reader = asyncio.StreamReader()
        # Open for reading and writing: no end of file when the script closes its end.
        pipe = os.fdopen(os.open(self.folder / Pipe.EVENTS.value, os.O_RDWR | os.O_NONBLOCK), "rb", buffering=0)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        while True:
            with contextlib.suppress(ValueError):  # a line without end, which is dropped
                yield (await reader.readline()).decode(errors="replace").strip()

    def send(self, pipe: Pipe, line: str) -> None:
        """Put a line into a pipe, where it stays until the script reads it."""
        descriptor = os.open(self.folder / pipe.value, os.O_RDWR | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):  # full of lines that nobody reads
            os.write(descriptor, line.replace("\n", " ").encode(errors="replace")[:2000] + b"\n")
        self.held.append(descriptor)  # a pipe loses its content when no process has it open
