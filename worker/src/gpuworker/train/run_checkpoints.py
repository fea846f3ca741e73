"""Checkpoints during a run: which one to resume, when to save, which one is the best."""

from __future__ import annotations

import argparse
import os
import time
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
        self.identity = {**spec.identity, "spec": spec.name, "seed": args.seed}
        self.newest: Path | None = None  # of those that this attempt has saved
        self.saved_order: tuple[int, int] | None = None

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
                if found and (difference := describe_difference(found.state["identity"], self.identity)):
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

    def needs_save(self, state: TrainState, evaluated: bool) -> bool:
        return bool(self.args.output) and order_of(state, evaluated) != self.saved_order

    def save(self, state: TrainState, write: Callable[[Path], None], evaluated: bool, best: bool) -> None:
        """Commit a checkpoint on rank 0, link it, submit it for upload, and remove old ones."""
        self.saved_order = order = order_of(state, evaluated)
        if not self.checkpointer:
            return
        started = time.perf_counter()
        epoch = f"epoch-{state.epoch if order[1] else state.epoch + 1:04}"
        name = epoch if order[1] else f"{epoch}-step-{state.step:08}"
        contents = {"train_state": asdict(state), "identity": self.identity, "world_size": self.context.world_size}
        self.newest = self.checkpointer.save(name, order, contents, write)
        if best:
            self.checkpointer.link("best", name)
        if self.uploader:
            self.uploader.submit(self.newest)
        self.checkpointer.remove_old()
        log(Tag.TRAIN, rank=0, saved=name, step=state.step, best=best, seconds=time.perf_counter() - started)


def order_of(state: TrainState, evaluated: bool) -> tuple[int, int]:
    """Order of checkpoints: the step, then whether the epoch's evaluation is included."""
    return state.step, int(evaluated or state.position == 0)


def describe_difference(before: dict, now: dict) -> str:
    return "; ".join(f"{key} was {before.get(key)}, is {now[key]}" for key in now if before.get(key) != now[key])
