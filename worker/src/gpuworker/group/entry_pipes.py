"""How the agent and the task's entry script talk: named pipes in a folder that both containers mount."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path


class Channel:
    """`news` carries lines from the entry script; `go`, `end` and `told` one line each to it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.held: list[int] = []
        for name in ("news", "go", "end", "told"):
            self.pipe(name)

    def pipe(self, name: str) -> Path:
        with contextlib.suppress(FileExistsError):  # the entry script makes them too: who comes first
            os.mkfifo(self.folder / name)
            os.chmod(self.folder / name, 0o666)  # the task may run as another user
        return self.folder / name

    async def news(self) -> asyncio.StreamReader:
        reader = asyncio.StreamReader()
        # Open for both: no end of file when the script closes it.
        pipe = os.fdopen(os.open(self.folder / "news", os.O_RDWR | os.O_NONBLOCK), "rb", buffering=0)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        return reader

    def say(self, name: str, line: str) -> None:
        """Leave a line for the script; it is kept until the script reads it."""
        pipe = os.open(self.folder / name, os.O_RDWR | os.O_NONBLOCK)
        os.write(pipe, line.replace("\n", " ").encode()[:2000] + b"\n")
        self.held.append(pipe)  # a pipe forgets what is in it when nobody has it open
