"""What a run requires of the volume of --output: it can be written, has space, and is the same one for all ranks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from gpuworker.train.checkpoint_files import checkpoints_in
from gpuworker.train.distributed import DistributedContext
from gpuworker.train.memory import format_bytes

PROBE_BYTES = 1 << 20


class SpaceError(ValueError):
    """The volume is too small for the run's checkpoints."""


class NotSharedError(ValueError):
    """Ranks do not see the same --output, which they must if each of them saves a part."""


def probe(folder: Path, rank: int) -> None:
    """Write a file of this rank, and raise the OSError of a volume that is full or fails."""
    path = folder / f".probe-{rank}"
    with path.open("wb") as file:
        file.write(bytes(PROBE_BYTES))
        file.flush()  # unlike a single write, it goes on until all is written or one fails
        os.fsync(file.fileno())
    path.unlink()


def require_space(folder: Path, keep: int, size: int) -> None:
    """Raise SpaceError unless there is space for the `keep` newest checkpoints, the best one and one being written."""
    kept, wanted = len(checkpoints_in(folder)), keep + 2
    usage = shutil.disk_usage(folder)
    missing = max(1, wanted - kept) * size
    if usage.total and usage.free < missing:
        raise SpaceError(
            f"{folder}: {format_bytes(usage.free)} are free and checkpoints need {format_bytes(missing)}: {wanted} of "
            f"{format_bytes(size)}, of which {kept} exist; use a larger volume or a smaller --keep"
        )


def require_shared(output: str, run: str, context: DistributedContext) -> None:
    """Raise NotSharedError on all ranks unless all of them see rank 0's folder of the run. Collective."""
    seen = context.ranks_that_see(context.broadcast_object(Path(output) / run))
    if blind := [rank for rank, sees in enumerate(seen) if not sees]:
        raise NotSharedError(
            f"--output {output}: rank {blind[0]} does not see what rank 0 writes there; "
            "with --engine fsdp every rank saves a part: use a volume that all nodes mount (ReadWriteMany)"
        )
