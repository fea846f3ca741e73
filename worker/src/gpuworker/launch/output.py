"""Output of the launcher and of its ranks. Threads copy it, line by line, so that no line is mixed.

The log's reader may be slow: then the ranks wait in their writes, as they would without a launcher,
and the launcher itself does not.
"""

from __future__ import annotations

import contextlib
import io
import os
import queue
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

from gpuworker.launch.rank_failure import WATCHDOG

CHUNK_BYTES, LINE_BYTES = 65536, 65536
TAIL_BYTES = 65536  # of a rank's last output
PARTIAL_LINE_S = 0.2  # after which an unfinished line is written: a prompt, a progress bar
CLOSE_S = 5.0  # how long the end waits for a reader that has stopped reading


class RankOutput:
    """What is known of a rank's output. `watchdog`: NCCL's line that a collective timed out."""

    def __init__(self, prefix: bytes, file: int | None):
        self.prefix, self.file = prefix, file
        self.tail, self.watchdog = b"", ""
        self.activity_at = time.monotonic()
        self.copies: list[threading.Thread] = []  # one per stream

    @property
    def open(self) -> bool:
        return any(copy.is_alive() for copy in self.copies)

    def keep(self, data: bytes) -> None:
        self.activity_at = time.monotonic()
        before, self.tail = self.tail[-len(WATCHDOG) :], (self.tail + data)[-TAIL_BYTES:]
        if not self.watchdog and WATCHDOG in before + data:
            line = self.tail.rpartition(WATCHDOG)[2].partition(b"\n")[0]
            self.watchdog = (WATCHDOG + line).decode(errors="replace")[:500]

    def lines(self) -> list[str]:
        """The lines of its last output that are not empty."""
        found = self.tail.decode(errors="replace").splitlines()
        return [line.strip() for line in found if line.strip()]


class Output(io.TextIOBase):
    """Standard output of the launcher (write), and the copy of its ranks' (add)."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # of the descriptors, and of what is known about both
        self.unfinished: set[int] = set()  # descriptors whose last line has no end yet
        self.pending: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._write, daemon=True)
        self.thread.start()

    def write(self, text: str) -> int:
        self.pending.put(text.encode(errors="replace"))
        return len(text)

    def _write(self) -> None:
        while text := self.pending.get():
            with self.lock:  # the launcher's lines begin one
                self.put(1, b"\n" + text if 1 in self.unfinished else text)

    def put(self, target: int, data: bytes) -> None:
        """Write to a descriptor, all of it. The caller holds the lock."""
        (self.unfinished.discard if data.endswith(b"\n") else self.unfinished.add)(target)
        with contextlib.suppress(OSError):  # nobody reads the log any more
            write_all(target, data)

    def add(
        self, rank: int, process: subprocess.Popen, prefix: bool, folder: Path | None
    ) -> RankOutput:
        """Copy a rank's output from now on."""
        file = None
        if folder:
            with contextlib.suppress(OSError):
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                file = os.open(folder / f"rank-{rank}.log", flags, 0o644)
        found = RankOutput(f"[rank{rank}]: ".encode() if prefix else b"", file)
        for target, pipe in ((1, process.stdout), (2, process.stderr)):
            copy = Stream(self, found, target, pipe).copy
            found.copies.append(threading.Thread(target=copy, daemon=True))
            found.copies[-1].start()
        return found

    def close(self) -> None:
        """Wait until everything is written, or nobody reads."""
        self.pending.put(b"")
        self.thread.join(CLOSE_S)


class Stream:
    """One pipe of a rank, which is written to the same descriptor of this process."""

    def __init__(self, output: Output, owner: RankOutput, target: int, pipe: io.RawIOBase):
        self.output, self.owner, self.target, self.pipe = output, owner, target, pipe
        self.in_line = False  # its last write did not end a line

    def copy(self) -> None:
        """Until its end: whole lines, and the rest when nothing follows for a moment."""
        partial, poll = b"", select.poll()
        poll.register(self.pipe, select.POLLIN)
        with self.pipe:
            while True:
                if partial and not poll.poll(PARTIAL_LINE_S * 1000):
                    self.write(partial)
                    partial = b""
                data = self.pipe.read(CHUNK_BYTES)
                if not data:
                    break
                self.owner.keep(data)
                whole, newline, partial = (partial + data).rpartition(b"\n")
                if len(partial) > LINE_BYTES:
                    newline, partial = newline + partial, b""
                self.write(whole + newline)
        self.write(partial)
        if self.in_line and self.target in self.output.unfinished:
            self.write(b"\n")

    def write(self, data: bytes) -> None:
        if not data:
            return
        owner = self.owner
        with self.output.lock:
            if owner.file is not None:
                try:
                    write_all(owner.file, data)
                except OSError:  # its disk is full; the log still has it
                    owner.file = None
            start = b"" if self.in_line else owner.prefix
            self.in_line = not data.endswith(b"\n")
            body = data.removesuffix(b"\n").replace(b"\n", b"\n" + owner.prefix)
            self.output.put(self.target, start + body + (b"" if self.in_line else b"\n"))


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # somebody else made the log non-blocking
            time.sleep(0.01)


def install() -> Output:
    """Make it this process's standard output and standard error."""
    sys.stdout = sys.stderr = made = Output()
    return made
