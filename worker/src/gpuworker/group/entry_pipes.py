"""Named pipes between the agent and the entry script, in a folder that both containers mount.

The task can do anything to that folder. A pipe that it removed or replaced is made again, and stays
open meanwhile: the script may still read it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

from gpuworker.group.protocol import EntryEvent, Pipe
from gpuworker.runtime.log import log
from gpuworker.runtime.plain_files import read_plain

EVENTS = {event.value for event in EntryEvent}
HISTORY = "events.sent"  # file with every line that the entry script has sent
HISTORY_BYTES = 1 << 16  # of a few lines of some ten bytes
MOST_SEEN = 64  # lines; a script sends three
LOOK_S = 1.0  # between two looks at the folder
MOST_ENDS = 3  # of one name: the first pipe, and the newest ones


class EntryPipes:
    """The agent's ends of the pipes; the entry script creates missing ones, too."""

    def __init__(self, folder: Path):
        self.folder = folder
        # without one its content is lost
        self.ends: dict[Pipe, list[int]] = {pipe: [] for pipe in Pipe}
        self.seen: set[str] = set()  # lines that were taken from the history or the pipe
        self.reported = False
        self.renew()

    def renew(self) -> None:
        """Open the pipes that have the names now; where there is none, make one."""
        for pipe in Pipe:
            try:
                end = _open(self.folder / pipe.value)
            except OSError as error:  # tried again
                self._report_once(pipe, error.strerror)
                continue
            ends = self.ends[pipe]
            if any(os.path.samestat(os.fstat(end), os.fstat(known)) for known in ends):
                os.close(end)
                continue
            if ends:
                self._report_once(pipe, "the task removed or replaced it")
            if len(ends) == MOST_ENDS:
                os.close(ends.pop(1))
            ends.append(end)

    def _report_once(self, pipe: Pipe, why: str | None) -> None:
        if not self.reported:
            self.reported = True
            log("GROUP", pipe=self.folder / pipe.value, why=why)

    async def events(self) -> AsyncIterator[str]:
        """Lines from the entry script, of its history and of the pipe, each once."""
        lines: asyncio.Queue[str] = asyncio.Queue(1)
        readers: dict[int, asyncio.Task] = {}
        try:
            while True:
                self.renew()
                for end in readers.keys() - self.ends[Pipe.EVENTS]:
                    readers.pop(end).cancel()
                for end in set(self.ends[Pipe.EVENTS]) - readers.keys():
                    readers[end] = asyncio.create_task(_copy_lines(end, lines))
                for line in self.unseen():
                    yield line
                with contextlib.suppress(asyncio.TimeoutError):
                    line = await asyncio.wait_for(lines.get(), LOOK_S)
                    if self._is_new(line):
                        yield line
        finally:
            for reader in readers.values():
                reader.cancel()

    def unseen(self) -> list[str]:
        """Lines of the history that were not taken yet: from before a restart of this container, or
        when the pipe was gone."""
        with contextlib.suppress(OSError):
            text = read_plain(self.folder / HISTORY, HISTORY_BYTES).decode(errors="replace")
            lines = map(str.strip, text.splitlines())
            return [line for line in lines if len(self.seen) < MOST_SEEN and self._is_new(line)]
        return []

    def _is_new(self, line: str) -> bool:
        """Whether an event was not taken yet. The script sends each one once; the task may write
        there, too.
        """
        if line in self.seen or line.partition(" ")[0] not in EVENTS:
            return False
        if len(self.seen) < MOST_SEEN:
            self.seen.add(line)
        return True

    def send(self, pipe: Pipe, line: str) -> None:
        """Put a line into a pipe, where it stays until the script reads it."""
        self.renew()
        for end in self.ends[pipe]:
            with contextlib.suppress(BlockingIOError):  # full of lines that are not read
                os.write(end, line.replace("\n", " ").encode(errors="replace")[:2000] + b"\n")


def _open(path: Path) -> int:
    """A pipe for reading and writing: no end of file when the script closes its end. Raises
    OSError.
    """
    for _ in range(3):
        with contextlib.suppress(FileExistsError):  # the entry script was first
            os.mkfifo(path)
        try:
            end = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError as error:
            # a link, a folder, a socket
            if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise
        else:
            if stat.S_ISFIFO(os.fstat(end).st_mode):
                # the entry script made it, as another user
                with contextlib.suppress(PermissionError):
                    os.fchmod(end, 0o666)  # the task may run as another user
                return end
            os.close(end)
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    raise OSError(errno.EAGAIN, "the task replaces it again and again")


async def _copy_lines(end: int, lines: asyncio.Queue[str]) -> None:
    reader = asyncio.StreamReader()
    pipe = os.fdopen(os.dup(end), "rb", buffering=0)
    connect = asyncio.get_running_loop().connect_read_pipe
    transport, _ = await connect(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        while True:
            with contextlib.suppress(ValueError):  # a line without end, which is dropped
                await lines.put((await reader.readline()).decode(errors="replace").strip())
    finally:
        transport.close()
