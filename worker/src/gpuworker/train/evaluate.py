"""Loss on validation data, independent of the number of ranks."""

from __future__ import annotations

import math

import torch

from gpuworker.train.distributed import DistributedContext
from gpuworker.train.preemption import Stopped, StopSignal
from gpuworker.train.schedule import PADDING
from gpuworker.train.train_spec import TrainSpec


def evaluate(
    module: torch.nn.Module, spec: TrainSpec, context: DistributedContext, stop: StopSignal, batch: int, autocast
) -> dict[str, float]:
    """Mean loss per label (natural log), its exponential, and the number of labels. Collective.

    `module` is not wrapped for training. Every sample is evaluated by exactly one rank, and ranks exchange sums, not
    means. Raises Stopped on all ranks together.
    """
    total = torch.zeros((), dtype=torch.float64, device=context.device)
    samples = len(spec.validation)
    rounds = math.ceil(samples / (batch * context.world_size))
    module.eval()
    try:
        with torch.no_grad():
            for number in range(rounds):
                stop.start_agreement(context)
                # Strided over ranks, as in training. Rows past the end are padding.
                first = (number * batch) * context.world_size + context.rank
                rows = first + context.world_size * torch.arange(batch)
                rows[rows >= samples] = PADDING
                inputs, labels = (part.to(context.device) for part in spec.validation.batch(rows))
                with autocast():
                    total += module(inputs, labels).double()
                if stop.agreed():
                    raise Stopped
    finally:
        module.train()
    tokens = int(spec.validation.label_counts.sum())
    loss = context.all_reduce_sum(total.item())[0] / max(1, tokens)
    return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "tokens": tokens}
