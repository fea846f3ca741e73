"""What the loop needs of the thing that it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

from gpuworker.train.distributed import World


class Samples(Protocol):
    """`learned` and `sizes`, int64 [samples]: how many labels a sample has, and how many inputs."""

    learned: torch.Tensor
    sizes: torch.Tensor

    def __len__(self) -> int: ...

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels of these samples; a row below 0 is padding, and has no label."""


class Task(Protocol):
    name: str
    train: Samples
    validation: Samples | None
    identity: dict  # what must be the same for a checkpoint to be of use, such as the data's digest

    def build(self, world: World, checkpoint: Path | None) -> torch.nn.Module:
        """A module that maps (inputs, labels) to the sum of the losses of all labels.

        Rank 0 gives it its weights: those of the checkpoint, if there is one. The other ranks get them from rank 0.
        """

    def save(self, module: torch.nn.Module, folder: Path) -> None:
        """Weights, so that `build` finds them."""

    def flops(self, module: torch.nn.Module) -> float:
        """Floating-point operations of one input's training step; 0 if unknown."""
