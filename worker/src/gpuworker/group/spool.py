"""Spool of a task's output: a file of the pod to which the task's container appends, and how far it
has been copied.

The copy on the volume may be slow, fail or start again without any effect on the task. What has
been copied is removed from the file as a hole, so that the file keeps its length and the writer its
position.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import struct
import weakref
from dataclasses import dataclass
from pathlib import Path

from gpuworker.runtime.plain_files import open_plain

OUTPUT, RECORD = "output", "copied"  # the entry script appends to the first
HOLE_BYTES = 1 << 20  # holes end at multiples of this
PUNCH_HOLE_KEEP_SIZE = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE of Linux


@dataclass
class Position:
    """Bytes read from the spool, bytes written to the volume, bytes skipped, and whether a line
    starts next.
    """

    read: int = 0
    written: int = 0
    lost: int = 0
    line_start: int = 1


class Spool:
    """The file and the record of its copy, in a folder that survives a restart of the agent.
    Raises OSError.
    """

    LAYOUT = struct.Struct("<4Q")
    SKIP = struct.Struct("<2Q")

    def __init__(self, folder: Path, fresh: bool = False):
        """`fresh`: the record is of another file."""
        self.path = folder / OUTPUT
        self.output = open_plain(self.path, os.O_RDWR | os.O_CREAT)
        weakref.finalize(self, os.close, self.output)  # another thread may read until then
        # the entry script was first, as another user, and has set the mode
        with contextlib.suppress(PermissionError):
            os.fchmod(self.output, 0o666)
        self.record = open_plain(folder / RECORD, os.O_RDWR | os.O_CREAT, 0o600)
        weakref.finalize(self, os.close, self.record)
        size = self.LAYOUT.size + self.SKIP.size
        kept = os.pread(self.record, size, 0)
        # whether the record says how far the copy is; the task may have removed it
        self.known = len(kept) == size
        kept = kept.ljust(size, b"\0")
        fields = self.LAYOUT.unpack_from(kept)
        self.synced = Position(*fields) if any(fields) else Position()
        self.skip_to, self.reported = self.SKIP.unpack_from(kept, self.LAYOUT.size)
        # or have replaced it
        if fresh or not (self._is_whole() and max(self.skip_to, self.synced.read) <= self.size):
            self.synced, self.skip_to, self.reported, self.known = Position(), 0, 0, False
            kept = bytes(size)
        os.pwrite(self.record, kept, 0)  # its place on the disk, which the output may fill

    def _is_whole(self) -> bool:
        synced = self.synced
        return synced.lost <= synced.read and synced.written < 1 << 62 and synced.line_start <= 1

    def is_replaced(self) -> bool:
        """Whether the task has made another file with this name, to which the entry script may
        write now.
        """
        with contextlib.suppress(FileNotFoundError):
            return not os.path.samestat(os.lstat(self.path), os.fstat(self.output))
        return False

    @property
    def size(self) -> int:
        return os.fstat(self.output).st_size

    def read(self, start: int, size: int) -> bytes:
        return os.pread(self.output, size, start)

    def set_synced(self, position: Position) -> None:
        """Record that the volume has everything up to `position`, and free it."""
        os.pwrite(self.record, self.LAYOUT.pack(*dataclasses.astuple(position)), 0)
        self.synced, self.known = dataclasses.replace(position), True
        self.free(position.read)

    def skip(self, to: int) -> None:
        """Give up what lies before `to`. Its reader has to check `skip_to` after each read."""
        self.skip_to = to
        self.keep_notes()
        self.free(to)

    def keep_notes(self) -> None:
        os.pwrite(self.record, self.SKIP.pack(self.skip_to, self.reported), self.LAYOUT.size)

    def free(self, end: int) -> None:
        """Remove the content before `end` from the disk. A file system without holes keeps it
        until the pod ends.
        """
        end -= end % HOLE_BYTES
        if end:
            offset = ctypes.c_int64
            ctypes.CDLL(None).fallocate(self.output, PUNCH_HOLE_KEEP_SIZE, offset(0), offset(end))
