"""Interface between the trainer and the way in which ranks share a model and its optimizer.

DataParallelModel (DDP) keeps a whole model on every rank, FullyShardedModel (FSDP2) a part of each parameter.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from pathlib import Path

import torch

from gpuworker.train import optimizer
from gpuworker.train.distributed import DistributedContext
from gpuworker.train.schedule import PADDING, BatchLayout
from gpuworker.train.train_spec import TrainSpec


class Engine:
    """Model and optimizer as all ranks train them together. All methods are collective.

    `module` serves evaluation. `named` are the parameters that a rank holds, whole or in part, and `trainable` those of
    them that change.
    """

    sharded = False  # whether every rank saves a part of the state, on a volume that all ranks share
    module: torch.nn.Module
    named: dict[str, torch.nn.Parameter]

    def __init__(self, spec: TrainSpec, args: argparse.Namespace, context: DistributedContext):
        self.spec, self.args, self.context = spec, args, context
        self.local_backward_s = 0.0  # seconds of a backward pass without communication, 0 if unknown
        # What passes compute in, None: float32. Weights and optimizer state stay in float32, which keeps small steps.
        self.compute_type = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None

    def make_optimizer(self) -> None:
        """Create the optimizer of `module`, once its parameters are where they stay."""
        args = self.args
        self.named = dict(self.module.named_parameters())
        self.trainable = [each for each in self.named.values() if each.requires_grad]
        self.updater = optimizer.Updater(self.trainable, args.lr, args.wd, args.clip, args.betas, args.fp16)
        self.optimizer = self.updater.optimizer
        self.flops_per_token = self.spec.flops_per_token(self.module)

    def padding(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch without labels, which has no loss and no gradient, to warm up with."""
        args, samples = self.args, len(self.spec.train)
        layout = BatchLayout.of(samples, args.batch, args.accumulate, self.context.world_size)
        return self.spec.train.batch(torch.full((layout.batch,), PADDING))

    def autocast(self) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext()

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor], sync_gradients: bool) -> torch.Tensor:
        """Sum of the losses of this rank's labels. Ranks exchange gradients in the last pass of a step."""
        raise NotImplementedError

    def backward(self, loss: torch.Tensor, sync_gradients: bool) -> None:
        """Add this rank's gradients, divided by the number of ranks, to those of all ranks."""
        raise NotImplementedError

    def to_device(self, batch: tuple[torch.Tensor, torch.Tensor]) -> list[torch.Tensor]:
        return [part.to(self.context.device, non_blocking=True) for part in batch]

    def step(self, lr: float) -> torch.Tensor:
        """Take an optimizer step. Returns 1 if it was skipped, else 0."""
        return self.updater.step(lr)

    def weights_are_finite(self) -> bool:
        return not self.context.all_reduce_sum(float(not self.updater.weights_are_finite()))[0]

    def parameter_count(self) -> int:
        return sum(each.numel() for each in self.named.values())

    def checkpoint_bytes(self) -> int:
        """Size of a checkpoint: the weights, of adapters only those that change, and two optimizer states for each."""
        everything = list(self.named.values())
        saved = everything if len(self.trainable) == len(everything) else self.trainable
        weights, changing = (
            sum(each.numel() * each.element_size() for each in part) for part in (saved, self.trainable)
        )
        return weights + 2 * changing

    def copy_bytes(self) -> int:
        """Memory of this rank's host for the copies of a save in the background, by all ranks of the host."""
        raise NotImplementedError

    def save(self, folder: Path, in_background: bool, background: DistributedContext) -> Callable[[], None]:
        """Function that writes model and optimizer state into a checkpoint's folder.

        In the background it writes a copy of today's state, in another thread, with the control messages of
        `background`.
        """
        raise NotImplementedError


def allocate(module: torch.nn.Module, device: torch.device) -> None:
    """Give memory to a module on the meta device. Parameters that its layers share stay shared."""
    owners = [
        (owner, name, parameter)
        for owner in module.modules()
        for name, parameter in owner.named_parameters(recurse=False, remove_duplicate=False)
    ]
    module.to_empty(device=device)
    made: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
    for owner, name, before in owners:
        setattr(owner, name, made.setdefault(before, getattr(owner, name)))
