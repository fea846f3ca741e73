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
import threading
import time

CHUNK_BYTES, LINE_BYTES = 65536, 65536
TAIL_BYTES = 1 << 17  # of a rank's last output; NCCL's watchdog prints hundreds of frames
PARTIAL_LINE_S = 0.2  # after which an unfinished line is written: a prompt, a progress bar
CLOSE_S = 5.0  # how long the end waits for a reader that has stopped reading


class Output(io.TextIOBase):
    """Standard output of the launcher; `lock` keeps it and the copies of its ranks' apart."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # of the descriptors, and of what is known about both
        self.unfinished: set[int] = set()  # descriptors whose last line has no end yet
        self.pending: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._write, daemon=True)
        self.thread.start()

    def write(self, text: str) -> int:
        self.pending.put(text.encode(errors="replace"))
        return len(text)

    def _write(self) -> None:
        while (text := self.pending.get()) is not None:  # print writes empty texts, too
            self.put(1, text, begins_line=True)

    def put(self, target: int, data: bytes, begins_line: bool = False) -> None:
        """Write to a descriptor, all of it."""
        if not data:
            return
        with self.lock, contextlib.suppress(OSError):  # nobody reads the log any more
            view = memoryview(b"\n" * (begins_line and target in self.unfinished) + data)
            (self.unfinished.discard if data.endswith(b"\n") else self.unfinished.add)(target)
            while view:
                try:
                    view = view[os.write(target, view) :]
                except BlockingIOError:  # somebody else made the log non-blocking
                    time.sleep(0.01)

    def close(self) -> None:
        """Wait until everything is written, or nobody reads."""
        self.pending.put(None)
        self.thread.join(CLOSE_S)


class RankOutput:
    """Output of a rank. `pipes`: what threads copy to the descriptors 1 and 2."""

    def __init__(self, output: Output, *pipes: io.RawIOBase):
        self.output = output
        self.tail = b""
        self.activity_at = time.monotonic()
        copies = enumerate(pipes, 1)
        self.threads = [threading.Thread(target=self._copy, args=c, daemon=True) for c in copies]
        for thread in self.threads:
            thread.start()

    @property
    def open(self) -> bool:
        return any(thread.is_alive() for thread in self.threads)

    def _copy(self, target: int, pipe: io.RawIOBase) -> None:
        """Until its end: whole lines, and the rest when nothing follows for a moment."""
        partial, poll = b"", select.poll()
        poll.register(pipe, select.POLLIN)
        with pipe:
            while True:
                if partial and not poll.poll(PARTIAL_LINE_S * 1000):
                    self.output.put(target, partial)
                    partial = b""
                if not (data := pipe.read(CHUNK_BYTES)):
                    break
                self.keep(data)
                whole, newline, partial = (partial + data).rpartition(b"\n")
                if len(partial) > LINE_BYTES:
                    newline, partial = newline + partial, b""
                self.output.put(target, whole + newline)
        self.output.put(target, partial)

    def keep(self, data: bytes) -> None:
        self.activity_at = time.monotonic()
        self.tail = (self.tail + data)[-TAIL_BYTES:]

    def lines(self) -> list[str]:
        """The lines of its last output that are not empty."""
        found = map(str.strip, self.tail.decode(errors="replace").splitlines())
        return [line for line in found if line]
