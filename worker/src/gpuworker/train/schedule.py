"""Which samples each rank takes in each step, and the learning rate of it. Pure functions of the position in the run.

A step takes the next `batch · accumulate · world` samples of the epoch's order, whatever the number of ranks, and all
ranks have the same number of steps. The last step of an epoch takes what is left: ranks that get nothing compute on
padding, which adds nothing to loss or gradient. So no sample is dropped, and none counts twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

PADDING = -1  # a row without a sample


@dataclass(frozen=True)
class Shape:
    """How many samples a step takes: `batch` rows a rank and micro-step, `accumulate` micro-steps, `world` ranks."""

    batch: int
    accumulate: int
    world: int

    @property
    def step(self) -> int:
        return self.batch * self.accumulate * self.world


def epoch_order(samples: int, seed: int, epoch: int) -> torch.Tensor:
    """The samples of an epoch in the order of their use; the same on all ranks."""
    generator = torch.Generator().manual_seed(mix(seed, epoch, 0))
    return torch.randperm(samples, generator=generator)


def rows(order: torch.Tensor, position: int, shape: Shape, rank: int) -> torch.Tensor:
    """[accumulate, batch] samples of one rank in the step that begins at `position` of the order."""
    taken = order[position : position + shape.step]
    padded = torch.full((shape.step,), PADDING, dtype=order.dtype)
    padded[: len(taken)] = taken
    # Row i goes to rank i mod world, so that what is left at the end of an epoch is shared evenly.
    return padded.view(shape.accumulate, shape.batch, shape.world)[:, :, rank]


def steps_left(samples: int, position: int, shape: Shape) -> int:
    return math.ceil((samples - position) / shape.step)


def learning_rate(progress: float, peak: float, warmup: float, schedule: str) -> float:
    """Linear from 0 over the first `warmup` of the run, then constant, or a half cosine down to a tenth.

    `progress`: the share of the run's samples that have been used once this step is done, in (0, 1]. Counted in
    samples, not in steps, so that a run goes on as it was when the number of ranks changes.
    """
    if progress < warmup:
        return peak * progress / warmup
    if schedule == "constant":
        return peak
    return peak * (0.55 + 0.45 * math.cos(math.pi * (progress - warmup) / max(1e-9, 1 - warmup)))


def mix(*numbers: int) -> int:
    """One seed from several numbers (the finaliser of SplitMix64): near numbers give unlike seeds."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1  # torch takes 63 bits without complaint
