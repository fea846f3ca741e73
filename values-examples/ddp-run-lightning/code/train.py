"""A small network trained by Lightning: it learns to count. SIGTERM saves, and the next start continues."""

import argparse
import itertools
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

from gpuworker.train.stop_request import StopRequest, from_rank_0

WORDS, BATCH = 64, 8


class Counting(IterableDataset):
    """Pairs of a number and the next one, without end: rows FIRST, FIRST + STEP, …"""

    def __init__(self, first, step):
        self.first, self.step = first, step

    def __iter__(self):
        for row in itertools.count(self.first, self.step):
            yield torch.tensor(row % WORDS), torch.tensor((row + 1) % WORDS)


class Next(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Embedding(WORDS, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, WORDS)
        )

    def train_dataloader(self):
        # Lightning starts a loader without a state from its first row, so this one starts where the run is.
        ranks = self.trainer.world_size
        first = self.trainer.global_step * BATCH * ranks + self.trainer.global_rank
        return DataLoader(Counting(first, ranks), batch_size=BATCH)

    def training_step(self, batch, index):
        numbers, following = batch
        return functional.cross_entropy(self.layers(numbers), following)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


SAVED = "preempted.ckpt"


class LaunchCallback(Callback):
    """On SIGTERM all ranks save after the same step and exit with 75.

    It replaces Lightning's own handler, which starts a collective wherever the signal arrives.
    """

    def __init__(self, folder: str) -> None:
        self.path, self.stop, self.step = Path(folder) / SAVED, StopRequest(), 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.step = trainer.global_step
        if (first := from_rank_0(str(self.step))) != str(self.step):
            here = f"rank {trainer.global_rank} resumes at step {self.step}, rank 0 at step {first}"
            raise RuntimeError(f"{here}: it saw other files in {self.path.parent}; start again")
        self.stop.install()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (
            trainer.global_step == self.step
        ):  # the gradients of this batch are not applied yet, so not saved
            return
        self.step = trainer.global_step
        if trainer.is_global_zero and self.step % trainer.log_every_n_steps == 0:
            loss = outputs["loss"] if isinstance(outputs, Mapping) else outputs
            rate = trainer.optimizers[0].param_groups[0]["lr"]
            print(
                f"[STEP] rank=0 step={self.step} loss={float(loss):.6g} lr={rate:.6g}", flush=True
            )
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


parser = argparse.ArgumentParser()
parser.add_argument("--output", default="/out")
parser.add_argument("--steps", type=int, default=200)
options = parser.parse_args()
folder = os.path.join(
    options.output, os.environ.get("RUN_ID", "run")
)  # the chart sets RUN_ID to the run's name
torch.manual_seed(0)
trainer = Trainer(
    num_nodes=int(os.environ.get("NNODES", 1)),
    devices=int(os.environ.get("NPROC_PER_NODE", 1)),
    accelerator="gpu" if torch.cuda.is_available() else "cpu",
    strategy="ddp",
    max_steps=options.steps,
    log_every_n_steps=5,
    callbacks=[LaunchCallback(folder), ModelCheckpoint(folder, every_n_train_steps=50)],
    logger=False,
    enable_progress_bar=False,
)
trainer.fit(Next(), ckpt_path=newest_checkpoint(folder))
trainer.save_checkpoint(os.path.join(folder, "final.pt"), weights_only=True)
