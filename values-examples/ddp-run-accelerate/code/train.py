"""A small network in a plain loop with accelerate: it learns to count. SIGTERM saves, and the next start continues."""

import argparse
import os

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional

from gpuworker.train.integrations.accelerate_loop import LaunchedLoop

WORDS, BATCH = 64, 8

parser = argparse.ArgumentParser()
parser.add_argument("--output", default="/out")
parser.add_argument("--steps", type=int, default=200)
options = parser.parse_args()
folder = os.path.join(options.output, os.environ.get("RUN_ID", "run"))  # the chart sets RUN_ID to the run's name
torch.manual_seed(0)
accelerator = Accelerator(cpu=not torch.cuda.is_available())
model = nn.Sequential(nn.Embedding(WORDS, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, WORDS))
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
run = LaunchedLoop(accelerator, folder, save_every=50)
for step in range(run.resume(), options.steps):
    run.start_step()
    first = (step * accelerator.num_processes + accelerator.process_index) * BATCH
    numbers = torch.arange(first, first + BATCH, device=accelerator.device) % WORDS
    loss = functional.cross_entropy(model(numbers), (numbers + 1) % WORDS)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    run.end_step(step + 1, log_every=5, loss=loss)
accelerator.save_model(model, os.path.join(folder, "final"))
accelerator.end_training()
