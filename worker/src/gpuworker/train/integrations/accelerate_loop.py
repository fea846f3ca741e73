"""Loops with Hugging Face's accelerate.

  run = LaunchedLoop(accelerator, folder, save_every=1000)  # after accelerator.prepare(…)
  for step in range(run.resume(), steps):
      run.start_step(); …; run.end_step(step + 1, loss=…)

On SIGTERM all ranks save after the same step and exit with 75.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from accelerate import Accelerator

from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log
from gpuworker.train.stop_request import StopRequest, from_rank_0


class LaunchedLoop:
    """Saves FOLDER/step-00000001 every `save_every` steps, and keeps the newest `keep` of them."""

    def __init__(self, accelerator: Accelerator, folder: str, save_every: int = 1000, keep: int = 2) -> None:
        if accelerator.project_configuration.automatic_checkpoint_naming:
            raise ValueError("automatic_checkpoint_naming=True: LaunchedLoop names the checkpoints; set it to False")
        self.accelerator, self.folder, self.save_every, self.keep = accelerator, Path(folder), save_every, keep
        self.stop = StopRequest()

    def resume(self) -> int:
        """Load the newest checkpoint and return its step, or 0. From now on SIGTERM is a request."""
        if self.accelerator.is_main_process:  # a run with more ranks left more files than this one would overwrite
            remove(self.folder.glob(".partial-*"))
        found = sorted(self.folder.glob("step-*"))
        newest = from_rank_0(str(found[-1]) if found else None)  # after the removal, so before any rank saves
        if newest:
            self.accelerator.load_state(newest)
        self.stop.install()
        return int(newest.rpartition("-")[2]) if newest else 0

    def start_step(self) -> None:
        self.stop.start_step()

    def end_step(self, step: int, log_every: int = 10, **facts: object) -> None:
        """Call it on all ranks after each optimizer step. `facts`: numbers for the [STEP] line."""
        if step % log_every == 0 and self.accelerator.is_main_process:
            log(Tag.STEP, rank=0, step=step, **{k: torch.as_tensor(v).detach().item() for k, v in facts.items()})
        if (stopping := self.stop.agreed()) or step % self.save_every == 0:
            self.save(step)
        if stopping:
            self.stop.exit_saved(step, f"step-{step:08d}")

    def save(self, step: int) -> None:
        partial, path = self.folder / f".partial-{step:08d}", self.folder / f"step-{step:08d}"
        self.accelerator.save_state(str(partial))
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:  # renamed when it is whole, so a kill leaves no checkpoint that is cut off
            remove([path])
            partial.rename(path)
            remove(sorted(self.folder.glob("step-*"))[: -self.keep])
        self.accelerator.wait_for_everyone()


def remove(folders: Iterable[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
