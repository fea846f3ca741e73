"""A small network trained by Lightning: it learns to count. SIGTERM saves, and the next start continues."""

import argparse
import itertools
import os

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

from gpuworker.train.integrations.lightning import LaunchCallback, newest_checkpoint

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
        self.layers = nn.Sequential(nn.Embedding(WORDS, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, WORDS))

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


parser = argparse.ArgumentParser()
parser.add_argument("--output", default="/out")
parser.add_argument("--steps", type=int, default=200)
options = parser.parse_args()
folder = os.path.join(options.output, os.environ.get("RUN_ID", "run"))  # the chart sets RUN_ID to the run's name
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
