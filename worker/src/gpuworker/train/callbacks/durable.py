"""A checkpoint counts once it is whole and on the disk.

  trainer = Trainer(…, callbacks=[Durable(keep=2), Stop()])  # save_total_limit is left unset
  trainer.train(resume_from_checkpoint=newest(args.output_dir))

Trainer writes checkpoint-N in place, syncs nothing, and deletes older ones first. Here that name is
a temporary one: what is whole is synced, renamed to epoch-…/rank-0, and only then are older ones
deleted. All nodes write to one mounted folder.
"""

import json
import math
import os
import shutil
from pathlib import Path

import torch.distributed as dist
from transformers import TrainerCallback

from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log
from gpuworker.train.stop_request import from_rank_0
from gpuworker.train.train import by_age, keep_newest, sync

PARTS = "parts.json"  # identity of the run, and the size of each file of the checkpoint


def newest(folder: str, identity: dict | None = None) -> str | None:
    """Path of the newest checkpoint that lacks nothing, the same on all ranks; None without one.

    Raises ValueError if it is of a run whose identity, such as its data, was another.
    """
    found = problem = None
    if int(os.environ.get("RANK", 0)) == 0:
        for unfinished in Path(folder).glob("checkpoint-*"):
            shutil.rmtree(unfinished)
        for path in reversed(by_age(Path(folder))):
            if parts := whole(path / "rank-0"):
                found, problem = str(path / "rank-0"), changes(parts["identity"], identity or {})
                break
            log(Tag.TRAIN, rank=0, incomplete=path.name)
    found, problem = from_rank_0((found, problem))
    if problem:
        raise ValueError(f"{found} is of a run with another {problem}; use another --run-id")
    return found


def whole(path: Path) -> dict | None:
    """What PARTS says, if every file that it names is there in its full size."""
    try:
        parts = json.loads((path / PARTS).read_text())
        sizes = {name: (path / name).stat().st_size for name in parts["files"]}
        return parts if parts["files"] and sizes == parts["files"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def changes(before: dict, now: dict) -> str:
    return ", ".join(f"{k}: {before.get(k)}, now {v}" for k, v in now.items() if before.get(k) != v)


def barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


class Durable(TrainerCallback):
    """Keeps the newest `keep` checkpoints and the best; saves every `every` steps, too, if not
    0.
    """

    def __init__(self, keep: int = 2, every: int = 0, identity: dict | None = None):
        self.keep, self.every, self.identity = keep, every, identity or {}
        self.best, self.saved_at = False, -1

    def on_train_begin(self, args, state, control, **_) -> None:
        if args.save_total_limit or args.load_best_model_at_end:
            raise ValueError(
                "save_total_limit and load_best_model_at_end would delete or miss checkpoints: "
                "use Durable(keep=…), and the link best in the run's folder"
            )

    def on_step_end(self, args, state, control, **_) -> None:
        if self.every and state.global_step % self.every == 0 and state.epoch % 1:
            control.should_save = True

    def on_evaluate(self, args, state, control, metrics=None, **_) -> None:
        loss = (metrics or {}).get("eval_loss", math.nan)
        self.best = loss <= (math.inf if state.best_metric is None else state.best_metric)

    def on_save(self, args, state, control, **_) -> None:
        folder, step = Path(args.output_dir), state.global_step
        written = folder / f"checkpoint-{step}"
        barrier()  # every rank has written its part
        if args.local_process_index == 0:  # each node syncs what it wrote
            for path in [*written.rglob("*"), written]:
                sync(path)
        barrier()
        if args.process_index == 0:
            name = f"epoch-{math.ceil(state.epoch):04d}"
            name += f"-step-{step:08d}" if state.epoch % 1 else ""
            # With max_steps, Trainer announces the end of an epoch after the last step, too.
            if step == self.saved_at:
                shutil.rmtree(written)
            else:
                self.publish(written, folder / name)
            keep_newest(folder, name if self.best else "", self.keep)
            log(Tag.TRAIN, rank=0, saved=name, step=step, best=self.best)
        self.best, self.saved_at = False, step
        barrier()

    def publish(self, written: Path, path: Path) -> None:
        files = [file for file in written.rglob("*") if file.is_file()]
        sizes = {str(file.relative_to(written)): file.stat().st_size for file in files}
        parts = {"identity": self.identity, "files": sizes}
        (written / PARTS).write_text(json.dumps(parts))
        outer = written.with_name(f"{written.name}.whole")
        outer.mkdir()
        written.rename(outer / "rank-0")
        for each in (outer / "rank-0" / PARTS, outer / "rank-0", outer):
            sync(each)
        shutil.rmtree(path, ignore_errors=True)  # of another start, which had fewer or other steps
        outer.rename(path)
        sync(path.parent)
