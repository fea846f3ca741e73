"""Interface between the trainer and a model with its data."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

from gpuworker.train.distributed import DistributedContext


class Dataset(Protocol):
    """Indexed samples. `label_counts` and `token_counts`, int64 [samples]: labels and inputs of each sample."""

    label_counts: torch.Tensor
    token_counts: torch.Tensor

    def __len__(self) -> int: ...

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels of these samples. A row below 0 is padding and has no label."""


class TrainSpec(Protocol):
    """Model, data and identity of a run."""

    name: str
    train: Dataset
    validation: Dataset | None
    same_shape: bool  # whether all batches of training have the same shape
    identity: dict  # facts that a checkpoint must share to be resumed, such as the data's digest
    settings: dict  # facts that may change when a run is resumed, although they change what it learns

    def build(
        self, context: DistributedContext, checkpoint: Path | None, device: torch.device | None = None
    ) -> torch.nn.Module:
        """Module that maps (inputs, labels) to the sum of the losses of all labels, by default on this rank's device.

        For rank 0, which loads the weights, from the checkpoint if there is one. The others receive them from it.
        """

    def build_empty(self) -> torch.nn.Module:
        """The same module on the meta device: shapes and no memory."""

    def initialize(self, module: torch.nn.Module) -> None:
        """Set the buffers of an empty module that has been allocated, whole or in parts; its weights may change too."""

    def save(self, module: torch.nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
        """Write the weights, a state_dict of the module or a copy of one, in the form that `build` reads."""

    def save_description(self, module: torch.nn.Module, folder: Path) -> None:
        """Write what `save` writes except for the weights."""

    def flops_per_token(self, module: torch.nn.Module) -> float:
        """Floating-point operations of one input's training step; 0 if unknown."""
