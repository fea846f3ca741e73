"""Output of the launcher and of its ranks: one thread copies all of it, so that no line is mixed.

The log's reader may be slow: then the ranks wait in their writes, as they would without a launcher,
and the launcher itself does not.
"""

from __future__ import annotations

import contextlib
import io
import os
import selectors
import sys
import threading
import time
from collections import deque
from pathlib import Path

from gpuworker.launch.failure_causes import WATCHDOG

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
        self.open = 0  # streams

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


class Stream:
    """One pipe of a rank, which is written to the same descriptor of this process."""

    def __init__(self, owner: RankOutput, target: int, unfinished: set[int]):
        self.owner, self.target, self.unfinished = owner, target, unfinished
        self.partial, self.partial_at, self.in_line = b"", 0.0, False

    def take(self, data: bytes) -> None:
        self.owner.keep(data)
        whole, newline, self.partial = (self.partial + data).rpartition(b"\n")
        self.partial_at = time.monotonic()
        self.write(whole + newline)
        if len(self.partial) > LINE_BYTES:
            self.flush()

    def flush(self) -> None:
        partial, self.partial = self.partial, b""
        self.write(partial)

    def write(self, data: bytes) -> None:
        if not data:
            return
        if self.owner.file is not None:
            try:
                write_all(self.owner.file, data)
            except OSError:  # its disk is full; the log still has it
                self.owner.file = None
        if prefix := self.owner.prefix:
            body, last = (data[:-1], data[-1:]) if data.endswith(b"\n") else (data, b"")
            start = b"" if self.in_line else prefix
            shown = start + body.replace(b"\n", b"\n" + prefix) + last
        else:
            shown = data
        self.in_line = not data.endswith(b"\n")
        (self.unfinished.add if self.in_line else self.unfinished.discard)(self.target)
        with contextlib.suppress(OSError):  # nobody reads the log any more
            write_all(self.target, shown)


class Output(io.TextIOBase):
    """Standard output of the launcher (write), and the copy of its ranks' (add)."""

    def __init__(self) -> None:
        self.pending: deque[bytes] = deque()
        self.streams: deque[tuple[int, Stream]] = deque()  # that the thread does not read yet
        self.closing = False
        self.unfinished: set[int] = set()  # descriptors whose last line has no end yet
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_write, False)
        self.thread = threading.Thread(target=self._copy, daemon=True)
        self.thread.start()

    def write(self, text: str) -> int:
        self.pending.append(text.encode(errors="replace"))
        self._wake()
        return len(text)

    def add(self, rank: int, pipes: dict[int, int], prefix: bool, folder: Path | None) -> RankOutput:
        """Copy a rank's pipes from now on. `pipes`: descriptor to read -> descriptor to write."""
        file = None
        if folder:
            with contextlib.suppress(OSError):
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                file = os.open(folder / f"rank-{rank}.log", flags, 0o644)
        found = RankOutput(f"[rank{rank}]: ".encode() if prefix else b"", file)
        found.open = len(pipes)
        for source, target in pipes.items():
            self.streams.append((source, Stream(found, target, self.unfinished)))
        self._wake()
        return found

    def close(self) -> None:
        """Wait until everything is written, or nobody reads."""
        self.closing = True
        self._wake()
        self.thread.join(CLOSE_S)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self.wake_write, b".")

    def _copy(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self.wake_read, selectors.EVENT_READ)
            while True:
                self._turn(selector)
                if self.closing and not self.pending:
                    return

    def _turn(self, selector: selectors.BaseSelector) -> None:
        while self.streams:
            source, stream = self.streams.popleft()
            selector.register(source, selectors.EVENT_READ, stream)
        watched = [key.data for key in selector.get_map().values() if key.data]
        waiting = any(stream.partial for stream in watched)
        for key, _ in selector.select(PARTIAL_LINE_S if waiting else None):
            data = os.read(key.fd, CHUNK_BYTES)
            if key.data and data:
                key.data.take(data)
            elif key.data:
                self._end(selector, key.fd, key.data)
        now = time.monotonic()
        for stream in watched:
            if stream.partial and now - stream.partial_at > PARTIAL_LINE_S:
                stream.flush()
        while self.pending:
            text = self.pending.popleft()
            with contextlib.suppress(OSError):  # the launcher's lines begin one
                write_all(1, b"\n" + text if 1 in self.unfinished else text)
            self.unfinished.discard(1)

    def _end(self, selector: selectors.BaseSelector, source: int, stream: Stream) -> None:
        selector.unregister(source)
        os.close(source)
        stream.flush()
        if stream.in_line and stream.target in self.unfinished:
            stream.write(b"\n")
        stream.owner.open -= 1


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
