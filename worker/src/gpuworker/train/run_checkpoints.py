"""Checkpoints during a run: which one to resume, when to save, which one is the best."""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log
from gpuworker.train import memory, volume
from gpuworker.train.checkpoint import Checkpointer
from gpuworker.train.checkpoint_files import Checkpoint, ResumeError
from gpuworker.train.distributed import DistributedContext
from gpuworker.train.engine import Engine
from gpuworker.train.model_files import weights_only
from gpuworker.train.train_spec import TrainSpec
from gpuworker.train.train_state import TrainState
from gpuworker.train.upload import Uploader

EARLY_S = 60.0  # until the first save by time
clock = time.monotonic


class SaveError(OSError):
    """The last checkpoint of a run could not be written."""


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
        self.background = context.separate()  # for the thread that saves while the ranks train
        self.checkpointer, self.uploader = checkpointer, uploader
        self.identity = {**spec.identity, "spec": spec.name, "seed": args.seed, "engine": args.engine}
        self.newest: Path | None = None  # on rank 0: what this attempt has resumed or saved
        self.saved_order: tuple[int, int] | None = None  # also while it is saved
        self.thread: threading.Thread | None = None  # of the save that runs
        self.failure = ""  # of the volume in that save, the same on all ranks
        self.error: BaseException | None = None  # of the program in it
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
                if found and (difference := identity_difference(found.state["identity"], self.identity)):
                    raise ResumeError(
                        f"{found.folder} belongs to another training: {difference}; "
                        "choose another --run, or --resume never"
                    )
                if found:
                    self.checkpointer.resume_from(found)
        self.newest = found.folder if found else None
        resumed = self.context.broadcast_object((found.state, found.order) if found else None)
        state = TrainState()
        if resumed:
            saved, order = resumed
            state = TrainState(**saved["train_state"])
            self.saved_order = tuple(order)
        state.attempts += 1
        return state, found

    def check_volume(self, size: int, shared: bool) -> None:
        """Raise SpaceError or NotSharedError on all ranks if the volume of --output cannot be used. Collective."""
        if shared and self.args.output:
            volume.require_shared(self.args.output, self.args.run, self.context)
        with self.context.raise_on_all_ranks():
            if self.checkpointer:
                volume.require_space(self.checkpointer.folder, self.args.keep, size)

    def is_due(self) -> bool:
        """Whether a save by time is due. For rank 0, whose request all ranks follow."""
        return bool(self.checkpointer and self.args.save_every_minutes) and clock() >= self.due_at

    def set_aside_after(self, good_step: int) -> None:
        """Keep checkpoints after this step from being resumed."""
        self.wait()
        if self.checkpointer:
            for name in self.checkpointer.set_aside_after(good_step):
                log(Tag.TRAIN, rank=0, checkpoint=name, set_aside="not finite")

    def needs_save(self, state: TrainState) -> bool:
        return bool(self.args.output) and state.order() != self.saved_order

    def save(self, state: TrainState, model: Engine, best: bool, last: bool = False) -> None:
        """Save a copy of this state while the ranks go on, once the save before it has ended. Collective.

        It waits for the end if this is the `last` checkpoint of the run, or if a host has no memory for the copy. If
        the volume fails, the run goes on and tries again later; only for the last checkpoint it raises SaveError on
        all ranks.
        """
        started = time.perf_counter()
        self.wait()
        order, name = state.order(), state.checkpoint_name()
        in_background = not last and self.copy_fits(model)
        folder = self.begin(name)
        if folder:
            contents = {
                "train_state": asdict(state),
                "identity": self.identity,
                "world_size": self.context.world_size,
                "best": best,
            }
            self.saved_order = order
            write = write_later(model, folder, in_background, self.background)

            def finish() -> None:
                try:
                    self.failure = self.finish(folder, write, name, order, contents, best, started, paused_s)
                except BaseException as error:
                    self.error = error

            paused_s = time.perf_counter() - started if in_background else None
            if in_background:
                self.thread = threading.Thread(target=finish, name="save", daemon=True)
                self.thread.start()
            else:
                finish()
        # Not before the end of the copy: the next save is due after training, however long this one took.
        self.due_at = clock() + 60 * self.args.save_every_minutes
        if not in_background:
            self.wait(last)

    def wait(self, last: bool = False) -> None:
        """Wait for the end of a save. After a failure of the volume the state counts as not saved.

        If it was the `last` save, that raises SaveError. On the same ranks as in the save, an error of the program is
        raised.
        """
        if self.thread:
            self.thread.join()
            self.thread = None
        if error := self.error:
            self.error = None
            raise error
        if failure := self.failure:
            self.failure, self.saved_order = "", None
            if last:
                raise SaveError(f"the last checkpoint could not be saved: {failure}")

    def copy_fits(self, model: Engine) -> bool:
        """Whether all hosts have memory for the copies that a save in the background needs. Collective."""
        needed, free = model.copy_bytes(), memory.free_bytes()
        fits = all(self.context.all_gather_object(needed <= free))
        if not fits and self.checkpointer:
            log(
                Tag.TRAIN,
                rank=0,
                warning="training waits for this save: a host has no memory for a copy of the state",
                needed=memory.format_bytes(needed),
                free=memory.format_bytes(free),
            )
        return fits

    def begin(self, name: str) -> Path | None:
        """Folder for a new checkpoint, the same on all ranks; None if the volume failed. Collective."""
        folder: Path | None = None
        if self.checkpointer:
            try:
                folder = self.checkpointer.begin(name)
            except OSError as error:
                self.failure = str(error)
                log(Tag.TRAIN, rank=0, save_failed=error, checkpoint=name)
        folder, self.failure = self.context.broadcast_object((folder, self.failure))
        return folder

    def finish(
        self,
        folder: Path,
        write: Callable[[], None],
        name: str,
        order: tuple[int, int],
        contents: dict,
        best: bool,
        started: float,
        paused_s: float | None,
    ) -> str:
        """Write and commit a checkpoint. Returns a failure of the volume, the same on all ranks. Collective."""
        failure = ""
        try:
            self.write_part(folder, write)
            if self.checkpointer:
                self.newest = self.checkpointer.commit(folder, name, order, contents)
                if best:
                    self.checkpointer.link("best", name)
                if self.uploader:
                    self.uploader.submit(self.newest)
                self.checkpointer.remove_old()
                seconds = time.perf_counter() - started
                facts = {"seconds": seconds, "paused": seconds if paused_s is None else paused_s}
                log(Tag.TRAIN, rank=0, saved=name, step=order[0], best=best, **facts)
        except OSError as error:
            failure = str(error)
            if self.checkpointer:
                log(Tag.TRAIN, rank=0, save_failed=failure, checkpoint=name)
        finally:
            if self.checkpointer:
                self.checkpointer.discard(folder)
        return self.background.broadcast_object(failure)

    def write_part(self, folder: Path, write: Callable[[], None]) -> None:
        """Write this rank's part. Raises OSError on all ranks if the volume failed on some. Collective."""
        error: Exception | None = None
        cause = ""
        try:
            write()
        except Exception as caught:
            error = caught
            cause = str(caught) if isinstance(caught, OSError) else ""
            try:
                volume.probe(folder, self.background.rank)  # libraries name a full disk in many ways, or in none
            except OSError as found:
                cause = str(found)
        # All ranks have written before any of them lists: a rank that still writes has temporary files.
        causes = self.background.all_gather_object(cause)
        seen = {str(path.relative_to(folder)) for path in folder.rglob("*")} if folder.is_dir() else set()
        names = self.background.all_gather_object(seen)
        if missing := sorted(set().union(*names) - names[0]):
            causes = [*causes, f"{folder}: rank 0 does not see {missing[0]}, which another rank has written"]
        if found := next(filter(None, causes), ""):
            raise OSError(found)
        with self.background.raise_on_all_ranks():
            if error:
                raise error


def write_later(model: Engine, folder: Path, in_background: bool, background: DistributedContext) -> Callable[[], None]:
    """What the engine leaves to do, or its error: all ranks learn of it where they meet."""
    try:
        return model.save(folder, in_background, background)
    except Exception as caught:
        error = caught

    def fail() -> None:
        raise error

    return fail


def identity_difference(before: dict, now: dict) -> str:
    """What makes a checkpoint one of another training. Earlier versions knew a model by the name of its folder only."""
    before = {"engine": "ddp", **before}
    if "config" in before:
        before.pop("model", None)
    elif "base_model" in before:
        before["base_model"] = weights_only(before["base_model"])
    return describe_difference(before, now)


def describe_difference(before: dict, now: dict) -> str:
    """What differs in facts that both have; of lists the members that do."""
    pairs = {key: (before[key], now[key]) for key in now if key in before and before[key] != now[key]}
    return "; ".join(f"{key} was {others(old, new)}, is {others(new, old)}" for key, (old, new) in pairs.items())


def others(value: object, than: object) -> object:
    """The value, or of a list of texts the members that the other one does not have."""
    if not all(isinstance(each, list) and all(isinstance(member, str) for member in each) for each in (value, than)):
        return value
    return ", ".join(str(each) for each in value if each not in than) or "without it"
