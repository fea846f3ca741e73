"""Output of torchrun and of the ranks: whole lines from pipes, printed, kept or folded."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from gpuworker.launch.rank_state import RankState

LINE_BYTES = 65536  # a longer line is printed in pieces


def read_lines(pipe: int, partial: bytes, take: Callable[[str], None]) -> bytes:
    """Pass every whole line of a non-blocking pipe to `take`. Returns the partial line at its end."""
    with contextlib.suppress(BlockingIOError):
        while data := os.read(pipe, LINE_BYTES):
            *whole, partial = (partial + data).split(b"\n")
            for line in whole:
                take(line.decode(errors="replace"))
            if len(partial) > LINE_BYTES:
                take(partial.decode(errors="replace"))
                partial = b""
    return partial


def print_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def fold_line(rank: RankState, folder: Path, text: str) -> None:
    """Keep a line in a file instead of the log: it follows from a failure that the log already shows."""
    rank.folded_lines += 1
    with contextlib.suppress(OSError), open(folder / f"folded-rank-{rank.rank}.txt", "a") as file:
        file.write(text + "\n")
