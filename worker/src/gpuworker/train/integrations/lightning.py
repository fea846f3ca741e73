"""Lightning's Trainer.

  trainer = Trainer(…, callbacks=[LaunchCallback(folder), ModelCheckpoint(folder, every_n_train_steps=…)])
  trainer.fit(module, ckpt_path=newest_checkpoint(folder))

On SIGTERM all ranks save FOLDER/preempted.ckpt after the same step and exit with 75. The callback replaces Lightning's
own handler of SIGTERM, which starts a collective wherever the signal arrives.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log
from gpuworker.train.stop_request import StopRequest, from_rank_0

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    from pytorch_lightning import Callback, LightningModule, Trainer

SAVED = "preempted.ckpt"


class LaunchCallback(Callback):
    def __init__(self, folder: str) -> None:
        self.path, self.stop, self.step = Path(folder) / SAVED, StopRequest(), 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.step = trainer.global_step
        if (first := from_rank_0(str(self.step))) != str(self.step):
            here = f"rank {trainer.global_rank} resumes at step {self.step}, rank 0 at step {first}"
            raise RuntimeError(f"{here}: it saw other files in {self.path.parent}; start again")
        self.stop.install()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.stop.start_step()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self.step:  # the gradients of this batch are not applied yet, so not saved
            return
        self.step = trainer.global_step
        if trainer.is_global_zero and self.step % trainer.log_every_n_steps == 0:
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            rate = trainer.optimizers[0].param_groups[0]["lr"]
            log(Tag.STEP, rank=0, step=self.step, loss=None if loss is None else float(loss), lr=rate)
        if self.stop.agreed():
            trainer.save_checkpoint(self.path)
            self.stop.exit_saved(self.step, SAVED)


def newest_checkpoint(folder: str) -> str | None:
    """Newest checkpoint, as this rank sees it: before fit() there is no process group. The callback compares the ranks.

    Lightning renames a file when it is whole. One that was damaged later is left out if there is another.
    """
    found = sorted(Path(folder).glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
    whole = [path for path in found if path.is_dir() or zipfile.is_zipfile(path)]
    return str((whole or found)[-1]) if found else None
