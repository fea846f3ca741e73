"""Sample order, the share of each rank, and the learning rate: pure functions of the position in the run.

A step takes the next `batch · accumulate · world size` samples of the epoch's order, whatever the number of ranks, and
all ranks have the same number of steps. The last step of an epoch takes the rest: ranks without samples compute on
padding, which adds nothing to loss or gradient. No sample is dropped or counted twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from gpuworker.train.train_state import TrainState

PADDING = -1  # a row without a sample


@dataclass(frozen=True)
class BatchLayout:
    """Global batch: `batch` rows per rank and micro-step, `accumulate` micro-steps, `world_size` ranks."""

    batch: int
    accumulate: int
    world_size: int

    @classmethod
    def of(cls, samples: int, batch: int, accumulate: int, world_size: int) -> BatchLayout:
        """The layout that is asked for, without rows that no step of so many samples can fill."""
        batch = min(batch, math.ceil(samples / world_size))
        return cls(batch, min(accumulate, math.ceil(samples / (batch * world_size))), world_size)

    @property
    def samples_per_step(self) -> int:
        return self.batch * self.accumulate * self.world_size


@dataclass(frozen=True)
class RunSchedule:
    """Length of a run and the position of a state in it. The run ends after `epochs` or, if set, `max_steps`."""

    samples: int
    epochs: int
    layout: BatchLayout
    max_steps: int = 0

    def epochs_done(self, state: TrainState) -> float:
        return state.epoch + state.position / self.samples

    def fraction_done(self, state: TrainState) -> float:
        by_steps = state.step / self.max_steps if self.max_steps else 0.0
        return min(1.0, max(self.epochs_done(state) / self.epochs, by_steps))

    def is_done(self, state: TrainState) -> bool:
        return state.epoch >= self.epochs or (bool(self.max_steps) and state.step >= self.max_steps)

    def warmup_fraction(self, given: float) -> float:
        """Warmup as a fraction of the run; `given` is a fraction below 1, or a number of steps."""
        if given < 1:
            return given
        by_steps = given / self.max_steps if self.max_steps else 0.0
        return min(1.0, max(given * self.layout.samples_per_step / (self.epochs * self.samples), by_steps))

    def total_steps(self, state: TrainState) -> int:
        """Steps done and to do. Earlier steps may have been larger or smaller than `layout`."""
        later = steps_left(self.samples, 0, self.layout) * max(0, self.epochs - state.epoch - 1)
        current = steps_left(self.samples, state.position, self.layout) if state.epoch < self.epochs else 0
        steps = state.step + current + later
        return min(steps, max(self.max_steps, state.step)) if self.max_steps else steps

    def steps_to_go(self, state: TrainState) -> float:
        """Steps to do, not rounded up at the end of each epoch."""
        steps = max(0.0, self.epochs - self.epochs_done(state)) * self.samples / self.layout.samples_per_step
        return min(steps, max(0, self.max_steps - state.step)) if self.max_steps else steps


def epoch_order(samples: int, seed: int, epoch: int) -> torch.Tensor:
    """Shuffled samples of an epoch, the same on all ranks."""
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch, 0))
    return torch.randperm(samples, generator=generator)


def rank_rows(order: torch.Tensor, position: int, layout: BatchLayout, rank: int) -> torch.Tensor:
    """[accumulate, batch] samples of one rank in the step that starts at `position` of the order."""
    taken = order[position : position + layout.samples_per_step]
    padded = torch.full((layout.samples_per_step,), PADDING, dtype=order.dtype)
    padded[: len(taken)] = taken
    # Row i goes to rank i mod world size, so the rest at the end of an epoch is shared evenly.
    return padded.view(layout.accumulate, layout.batch, layout.world_size)[:, :, rank]


def steps_left(samples: int, position: int, layout: BatchLayout) -> int:
    return math.ceil((samples - position) / layout.samples_per_step)


def learning_rate(progress: float, peak: float, warmup: float, schedule: str, lowest: float | None = None) -> float:
    """Linear from 0 over the first `warmup` of the run, then constant, or a half cosine down to `lowest`.

    `progress`: share of the run that is done after this step, in (0, 1]. Without a limit of steps it counts samples,
    so the schedule does not change with the number of ranks. `lowest` is a tenth of `peak` if it is not given.
    """
    if progress < warmup:
        return peak * progress / warmup
    if schedule == "constant":
        return peak
    if lowest is None:
        lowest = 0.1 * peak
    return lowest + (peak - lowest) * (0.5 + 0.5 * math.cos(math.pi * (progress - warmup) / max(1e-9, 1 - warmup)))


def derive_seed(*numbers: int) -> int:
    """One seed from several numbers (the finalizer of SplitMix64): similar numbers give unrelated seeds."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1  # torch accepts 63 bits
