"""Checkpoints during a run: which one to resume, when to save, which one is the best."""

from __future__ import annotations

import argparse
import os
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log
from gpuworker.train.checkpoint import Checkpoint, Checkpointer, ResumeError
from gpuworker.train.distributed import DistributedContext
from gpuworker.train.train_spec import TrainSpec
from gpuworker.train.train_state import TrainState
from gpuworker.train.upload import Uploader

EARLY_S = 60.0  # until the first save by time
PROBE_BYTES = 1 << 20
clock = time.monotonic


class SaveError(OSError):
    """The last checkpoint of a run could not be written."""


class SpaceError(ValueError):
    """The volume is too small for the run's checkpoints."""


class RunCheckpoints:
    """Checkpoints of one run. `checkpointer` and `uploader` exist on rank 0 only; without --output on no rank."""

    def __init__(
        self,
        spec: TrainSpec,
        args: argparse.Namespace,
        context: DistributedContext,
        checkpointer: Checkpointer | None,
        uploader: Uploader | None,
    ):
        self.args, self.context = args, context
        self.checkpointer, self.uploader = checkpointer, uploader
        self.identity = {**spec.identity, "spec": spec.name, "seed": args.seed, "engine": args.engine}
        self.newest: Path | None = None  # of those that this attempt has saved
        self.saved_order: tuple[int, int] | None = None
        self.due_at = clock() + min(EARLY_S, 60 * args.save_every_minutes)

    def resume(self) -> tuple[TrainState, Checkpoint | None]:
        """State to continue from and, on rank 0, its checkpoint. Collective.

        Rank 0 decides and broadcasts, because ranks may see a shared folder differently for a while. Raises ResumeError
        on all ranks if the checkpoint belongs to another training.
        """
        found: Checkpoint | None = None
        with self.context.raise_on_all_ranks():
            # --resume never refers to earlier runs. A later attempt continues this run.
            if self.checkpointer and self.args.resume == "never" and os.environ.get("ATTEMPT", "0") == "0":
                self.checkpointer.set_aside()
            elif self.checkpointer:
                found = self.checkpointer.load_newest()
                if found and (
                    difference := describe_difference({"engine": "ddp", **found.state["identity"]}, self.identity)
                ):
                    raise ResumeError(
                        f"{found.folder} belongs to another training: {difference}; "
                        "choose another --run, or --resume never"
                    )
        resumed = self.context.broadcast_object((found.state, found.order) if found else None)
        state = TrainState()
        if resumed:
            saved, order = resumed
            state = TrainState(**saved["train_state"])
            self.saved_order = tuple(order)
        state.attempts += 1
        return state, found

    def check_space(self, size: int) -> None:
        """Raise SpaceError on all ranks unless the volume has space for the checkpoints that are kept. Collective."""
        with self.context.raise_on_all_ranks():
            if self.checkpointer:
                folder = self.checkpointer.folder
                kept = len(list(folder.glob("epoch-*")))
                wanted = self.args.keep + 2  # the best one, and the one being written
                usage = shutil.disk_usage(folder)
                missing = max(1, wanted - kept) * size
                if usage.total and usage.free < missing:
                    raise SpaceError(
                        f"{folder}: {usage.free >> 20} MiB are free and checkpoints need {missing >> 20} MiB: {wanted} "
                        f"of {size >> 20} MiB, of which {kept} exist; use a larger volume or a smaller --keep"
                    )

    def is_due(self) -> bool:
        """Whether a save by time is due. For rank 0, whose request all ranks follow."""
        return bool(self.checkpointer and self.args.save_every_minutes) and clock() >= self.due_at

    def set_aside_after(self, good_step: int) -> None:
        """Keep checkpoints after this step from being resumed."""
        if self.checkpointer:
            for name in self.checkpointer.set_aside_after(good_step):
                log(Tag.TRAIN, rank=0, checkpoint=name, set_aside="not finite")

    def needs_save(self, state: TrainState) -> bool:
        return bool(self.args.output) and order_of(state) != self.saved_order

    def save(self, state: TrainState, write: Callable[[Path], None], best: bool, last: bool = False) -> None:
        """Commit a checkpoint, link it, submit it for upload, and remove old ones. Collective.

        `write` is collective: rank 0 creates the folder and commits it once all ranks have written their parts.
        If the volume fails, the run goes on and tries again later. Only if this is the `last` checkpoint of the run,
        it raises SaveError on all ranks.
        """
        order = order_of(state)
        failure = ""
        begun = False

        def write_on_all_ranks(folder: Path) -> None:
            nonlocal begun
            begun = bool(self.context.broadcast_object(str(folder)))
            self.write_part(folder, write)

        try:
            if self.checkpointer:
                self.commit(self.checkpointer, state, order, write_on_all_ranks, best)
            elif folder := self.context.broadcast_object(""):
                self.write_part(Path(folder), write)
        except OSError as error:
            failure = str(error)
            if self.checkpointer:
                log(Tag.TRAIN, rank=0, save_failed=failure, step=state.step)
                if not begun:
                    self.context.broadcast_object("")
        failure = self.context.broadcast_object(failure)
        # Not before the end of the save: the next one is due after training, however long this one took.
        self.due_at = clock() + 60 * self.args.save_every_minutes
        if not failure:
            self.saved_order = order
        elif last:
            raise SaveError(f"the last checkpoint could not be saved: {failure}")

    def write_part(self, folder: Path, write: Callable[[Path], None]) -> None:
        """Write this rank's part. Raises OSError on all ranks if the volume failed on some. Collective."""
        error: Exception | None = None
        cause = ""
        try:
            write(folder)
        except Exception as caught:
            error = caught
            cause = str(caught) if isinstance(caught, OSError) else ""
            try:
                probe(folder, self.context.rank)  # libraries name a full disk in many ways, or in none
            except OSError as found:
                cause = str(found)
        # All ranks have written before any of them lists: a rank that still writes has temporary files.
        causes = self.context.all_gather_object(cause)
        seen = {str(path.relative_to(folder)) for path in folder.rglob("*")} if folder.is_dir() else set()
        names = self.context.all_gather_object(seen)
        if missing := sorted(set().union(*names) - names[0]):
            causes = [*causes, f"{folder}: rank 0 does not see {missing[0]}, which another rank has written"]
        if found := next(filter(None, causes), ""):
            raise OSError(found)
        with self.context.raise_on_all_ranks():
            if error:
                raise error

    def check_shared(self) -> None:
        """Raise NotSharedError on all ranks unless all of them see rank 0's folder. Collective."""
        path = Path(self.args.output) / self.args.run / f".seen-by-all-{uuid.uuid4().hex[:8]}"
        if self.checkpointer:
            path.touch()
        path = self.context.broadcast_object(path)
        seen = self.context.all_gather_object(path.is_file())
        if self.checkpointer:
            path.unlink()
        if blind := [rank for rank, sees in enumerate(seen) if not sees]:
            raise NotSharedError(
                f"--output {self.args.output}: rank {blind[0]} does not see what rank 0 writes there; "
                "with --engine fsdp every rank saves a part: use a volume that all nodes mount (ReadWriteMany)"
            )

    def commit(self, checkpointer: Checkpointer, state: TrainState, order, write, best: bool) -> None:
        started = time.perf_counter()
        name = name_of(state, order)
        contents = {"train_state": asdict(state), "identity": self.identity, "world_size": self.context.world_size}
        self.newest = checkpointer.save(name, order, contents, write)
        if best:
            checkpointer.link("best", name)
        if self.uploader:
            self.uploader.submit(self.newest)
        checkpointer.remove_old()
        log(Tag.TRAIN, rank=0, saved=name, step=state.step, best=best, seconds=time.perf_counter() - started)


class NotSharedError(ValueError):
    """Ranks do not see the same --output, which they must if each of them saves a part."""


def probe(folder: Path, rank: int) -> None:
    """Write a file of this rank, and raise the OSError of a volume that is full or fails."""
    path = folder / f".probe-{rank}"
    with path.open("wb", buffering=0) as file:
        file.write(bytes(PROBE_BYTES))
        os.fsync(file.fileno())
    path.unlink()


def order_of(state: TrainState) -> tuple[int, int]:
    """Order of checkpoints: the step, then whether its evaluation, or the end of its epoch, is included."""
    return state.step, int(state.position == 0 or state.is_evaluated())


def name_of(state: TrainState, order: tuple[int, int]) -> str:
    if state.position == 0:
        return f"epoch-{state.epoch:04}"
    return f"epoch-{state.epoch + 1:04}-step-{state.step:08}" + ("-evaluated" if order[1] else "")


def describe_difference(before: dict, now: dict) -> str:
    return "; ".join(
        f"{key} was {before[key]}, is {now[key]}" for key in now if key in before and before[key] != now[key]
    )
