"""Progress of the ranks of a node: the last collective that each rank has entered, which names the
rank that hangs.

Each rank writes a small file that the check's process reads. A time-out is reported by the ranks
that wait, and NCCL ends one of these first, so their errors do not name the rank that did not
arrive.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

LENGTH = 120  # bytes of a record; a write of that size is seen whole


class Progress:
    """Writer of one rank."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.count = 0
        self._file = os.open(_path(folder, rank), os.O_CREAT | os.O_WRONLY, 0o600)

    def enter(self, name: str) -> None:
        """Call it before each collective; all ranks enter the same ones in the same order."""
        self.count += 1
        os.pwrite(self._file, f"{self.count} {name}".encode()[:LENGTH].ljust(LENGTH), 0)


def late(folder: Path, size: int, running: Collection[int]) -> tuple[list[int], str]:
    """The `running` ranks that did not arrive where the others wait, and words; "" if no rank
    has begun.
    """
    entered = [_read(folder, rank) for rank in range(size)]
    last, name = max(entered)
    behind = [rank for rank in running if entered[rank][0] < last]
    if not behind:
        return [], f"no rank has passed {name}" if last and len(running) == size else ""
    waiting = sum(count == last for count, _ in entered)
    ranks = f"rank{'s' * (len(behind) > 1)} {', '.join(map(str, behind))}"
    return behind, f"{ranks} did not arrive at {name}, where {waiting} of {size} ranks wait"


def _read(folder: Path, rank: int) -> tuple[int, str]:
    try:
        count, _, name = _path(folder, rank).read_text(errors="replace").strip().partition(" ")
        return int(count), name
    except (OSError, ValueError):
        return 0, ""


def _path(folder: Path, rank: int) -> Path:
    return folder / f"progress-{rank}"
