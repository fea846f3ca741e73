"""A small network in a plain loop with accelerate: it learns to count. SIGTERM saves, and the next start continues."""

import argparse
import os
import shutil
from pathlib import Path

import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from torch import nn
from torch.nn import functional

from gpuworker.train.stop_request import StopRequest, from_rank_0
from gpuworker.train.train import sync

WORDS, BATCH, SAVE_EVERY, KEEP = 64, 8, 50, 2


def save(step):
    """A checkpoint gets its name once it is whole and on the disk."""
    accelerator.save_state(str(folder / ".saving"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        for path in (*(folder / ".saving").rglob("*"), folder / ".saving"):
            sync(path)
        (folder / ".saving").rename(folder / f"step-{step:08d}")
        sync(folder)
        for old in sorted(folder.glob("step-*"))[:-KEEP]:
            shutil.rmtree(old)
    accelerator.wait_for_everyone()


parser = argparse.ArgumentParser()
parser.add_argument("--output", default="/out")
parser.add_argument("--steps", type=int, default=200)
options = parser.parse_args()
folder = Path(
    options.output, os.environ.get("RUN_ID", "run")
)  # the chart sets RUN_ID to the run's name
torch.manual_seed(0)
cpu = not torch.cuda.is_available()
gloo = [InitProcessGroupKwargs(backend="gloo")] if cpu and "RANK" in os.environ else []
accelerator = Accelerator(cpu=cpu, kwargs_handlers=gloo)
model = nn.Sequential(nn.Embedding(WORDS, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, WORDS))
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
if accelerator.is_main_process:
    shutil.rmtree(folder / ".saving", ignore_errors=True)  # what a kill has left
newest = from_rank_0(max(map(str, folder.glob("step-*")), default=None))
if newest:
    accelerator.load_state(newest)
stop = StopRequest()
stop.install()
for step in range(int(newest[-8:]) if newest else 0, options.steps):
    first = (step * accelerator.num_processes + accelerator.process_index) * BATCH
    numbers = torch.arange(first, first + BATCH, device=accelerator.device) % WORDS
    loss = functional.cross_entropy(model(numbers), (numbers + 1) % WORDS)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if accelerator.is_main_process and (step + 1) % 5 == 0:
        print(f"[STEP] rank=0 step={step + 1} loss={loss.item():.6g}", flush=True)
    stopping = stop.agreed()
    if stopping or (step + 1) % SAVE_EVERY == 0:
        save(step + 1)
    if stopping:
        stop.exit_saved(step + 1, f"step-{step + 1:08d}")
accelerator.save_model(model, folder / "final")
accelerator.end_training()
