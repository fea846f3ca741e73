"""Loss on data that is not trained on; the same whatever the number of ranks."""

from __future__ import annotations

import math

import torch

from gpuworker.train.distributed import World
from gpuworker.train.preemption import Stop, Stopped
from gpuworker.train.schedule import PADDING
from gpuworker.train.task import Task


def evaluate(module: torch.nn.Module, task: Task, world: World, stop: Stop, batch: int, context) -> dict[str, float]:
    """Mean loss of a learned token (natural log), its exponential, and how many there were. Collective.

    `module` is the plain one, not wrapped for training. Every sample is seen by one rank and none twice; sums, not
    means, cross ranks. Raises Stopped, on all ranks together.
    """
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    samples = len(task.validation)
    rounds = math.ceil(samples / (batch * world.size))
    module.eval()
    try:
        with torch.no_grad():
            for number in range(rounds):
                stop.begin(world)
                # Strided over ranks, as in training; rows past the end are padding.
                first = (number * batch) * world.size + world.rank
                rows = first + world.size * torch.arange(batch)
                rows[rows >= samples] = PADDING
                inputs, labels = (part.to(world.device) for part in task.validation.batch(rows))
                with context():
                    total += module(inputs, labels).double()
                if stop.agreed():
                    raise Stopped
    finally:
        module.train()
    tokens = int(task.validation.learned.sum())
    loss = world.sum(total.item())[0] / max(1, tokens)
    return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "tokens": tokens}
