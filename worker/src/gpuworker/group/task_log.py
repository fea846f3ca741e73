"""Copy of a task's output on a volume, with the time of each line. JobSet deletes the pods of ranks
that still run.

The task's container writes its output to the spool and never waits for this copy. Everything that
touches the volume runs in one thread: a volume that fails is tried again, one that hangs holds up
that thread only, and what waits longer than the spool may grow is skipped, counted and named in the
copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gpuworker.group.spool import Position, Spool
from gpuworker.runtime.plain_files import open_plain

CHUNK_BYTES = 1 << 13  # also what a full volume may lack although it would fit
BACKLOG_BYTES = 128 << 20  # of output that waits for the volume
POLL_S, RETRY_S, SYNC_S = 0.1, 1.0, 1.0
HANGS_S = 30  # until a write without an answer is reported


class TaskLog:
    """Copies the spool in `folder` to `file` as `TIME HOST LINE`. `report` is called once if
    that fails.
    """

    def __init__(self, folder: Path, file: Path, host: str, report: Callable[[str], None]):
        self.folder, self.file, self.host, self.report = folder, file, host, report
        self.spool: Spool | None = None
        self.target: int | None = None
        self.now = Position()
        self.error = ""
        self.reported = False
        self.passes = 0  # over the spool, also failed ones
        self.busy_since: float | None = None
        self.synced_at = time.monotonic()
        self.flush = self.stop = False
        self.wake = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while True:
            last = self.stop  # before the pass, which then has everything that was printed earlier
            self.busy_since = time.monotonic()
            try:
                self._copy()
                self.error = ""
            except OSError as error:
                self.error = error.strerror or str(error)
                self._close_target()
                self._report_once()
            self.busy_since = None
            self.passes += 1
            if last:
                return
            self.wake.wait(RETRY_S if self.error else POLL_S)
            self.wake.clear()

    def _copy(self) -> None:
        """Write to the volume what the spool has. A line is written when it begins, so its
        length costs no memory.
        """
        if self.spool is None:
            self.spool = Spool(self.folder)
        if self.target is None:
            self._open_target()
        while piece := self._next():
            text, after = piece
            self._append(text)
            self.now = after
            if time.monotonic() - self.synced_at >= SYNC_S:
                self._sync()
        if self.now != self.spool.synced and (
            self.flush or self.stop or time.monotonic() - self.synced_at >= SYNC_S
        ):
            self._sync()
        if self.spool.is_replaced():
            self._close_target()
            self.spool = Spool(self.folder, fresh=True)

    def _open_target(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.target = open_plain(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        # What followed the last sync is written again. A user may have shortened the file.
        size = os.fstat(self.target).st_size
        if not self.spool.known:  # the copy begins behind what the volume has
            self.spool.set_synced(dataclasses.replace(self.spool.synced, written=size))
        self.now = dataclasses.replace(self.spool.synced)
        self.now.written = min(self.now.written, size)
        os.ftruncate(self.target, self.now.written)
        self.synced_at = time.monotonic()

    def _next(self) -> tuple[bytes, Position] | None:
        """The next piece of the copy, and the position after it."""
        read, written, lost = self.now.read, self.now.written, self.now.lost
        chunk = self.spool.read(read, CHUNK_BYTES)
        # set before the content is removed: else `chunk` is whole
        skipped = self.spool.skip_to - read
        if skipped > 0:
            text = b"" if self.now.line_start else b"\n"
            text += self._prefix() + f"[GROUP] log_bytes_lost={skipped}\n".encode()
            return text, Position(read + skipped, written + len(text), lost + skipped, 1)
        if not chunk:
            return None
        text = self._stamp(chunk)
        return text, Position(
            read + len(chunk), written + len(text), lost, int(chunk.endswith(b"\n"))
        )

    def _prefix(self) -> bytes:
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
        return f"{now} {self.host} ".encode()

    def _stamp(self, chunk: bytes) -> bytes:
        prefix = self._prefix()
        lines = chunk.removesuffix(b"\n").replace(b"\n", b"\n" + prefix)
        return (
            (prefix if self.now.line_start else b"")
            + lines
            + (b"\n" if chunk.endswith(b"\n") else b"")
        )

    def _append(self, text: bytes) -> None:
        rest = memoryview(text)
        while rest:
            rest = rest[os.write(self.target, rest) :]

    def _sync(self) -> None:
        """Only now is an error of a network file system certain to be known."""
        os.fsync(self.target)
        self.spool.set_synced(self.now)
        self.synced_at = time.monotonic()

    def _close_target(self) -> None:
        """Keep the pieces that were written completely, unless that fails, too."""
        if self.target is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self.target, self.now.written)
                self._sync()
            with contextlib.suppress(OSError):
                os.close(self.target)
            self.target = None

    def _report_once(self) -> None:
        if not (self.reported or (self.spool and self.spool.reported)):
            self.reported = True
            if self.spool:
                self.spool.reported = 1
                with contextlib.suppress(OSError):
                    self.spool.keep_notes()
            self.report(f'log_copy=failing why="{self.error}" backlog_limit_bytes={BACKLOG_BYTES}')

    async def watch(self) -> None:
        """Bound the spool, and report a volume that hangs."""
        while True:
            await asyncio.sleep(1)
            if self.spool is None:
                continue
            size = self.spool.size
            if size - max(self.spool.synced.read, self.spool.skip_to) > BACKLOG_BYTES:
                with contextlib.suppress(OSError):  # the disk of the node fails; tried again
                    self.spool.skip(self._line_after(size - BACKLOG_BYTES // 2))
            busy_since = self.busy_since
            if (
                busy_since
                and time.monotonic() - busy_since > HANGS_S
                and time.monotonic() - self.synced_at > HANGS_S
            ):
                self.error = "the volume does not answer"
                self._report_once()

    def _line_after(self, start: int) -> int:
        return start + self.spool.read(start, CHUNK_BYTES).find(b"\n") + 1

    async def finish(self, timeout_s: float) -> str:
        """Wait until the volume has what was printed before. Returns facts about what it lacks,
        or nothing.
        """
        # that pass begins after this call
        end, own_pass = time.monotonic() + timeout_s, self.passes + 2
        self.flush = True
        self.wake.set()
        while (
            self._missing()
            and time.monotonic() < end
            and not (self.error and self.passes >= own_pass)
        ):
            await asyncio.sleep(0.02)
        missing = self._missing() + (self.spool.synced.lost if self.spool else 0)
        why = self.error or ("" if self.spool and self.spool.synced.lost else "the volume is slow")
        return (
            f'log_copy=incomplete bytes_missing={missing} why="{why or "the volume failed"}"'
            if missing
            else ""
        )

    def _missing(self) -> int:
        """Bytes of the spool that are not on the volume; a spool that could not be opened counts
        as one.
        """
        return self.spool.size - self.spool.synced.read if self.spool else 1

    def close(self, timeout_s: float = 10) -> None:
        """Write everything that was printed before to the volume, and end."""
        self.stop = True
        self.wake.set()
        self.thread.join(timeout_s)
