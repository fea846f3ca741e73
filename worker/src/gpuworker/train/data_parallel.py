"""Model and optimizer as all ranks train them together: forward, backward, step, save.

This is the only file that depends on how the model is distributed. Here it is DistributedDataParallel: every rank holds
the whole model and the whole optimizer state.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from gpuworker.train import optimizer, throughput
from gpuworker.train.distributed import DistributedContext
from gpuworker.train.schedule import PADDING, derive_seed
from gpuworker.train.train_spec import TrainSpec


class DataParallelModel:
    """Replicated model. `module` is not wrapped and serves evaluation; `trainable` are the parameters that change."""

    def __init__(self, spec: TrainSpec, args: argparse.Namespace, context: DistributedContext, checkpoint: Path | None):
        """Build the model and its optimizer, from rank 0's checkpoint if it has one. Collective."""
        self.spec, self.args, self.context = spec, args, context
        torch.manual_seed(derive_seed(args.seed, 1, 0))  # initial weights of --from-scratch
        with context.raise_on_all_ranks():
            self.module = spec.build(context, checkpoint)
        self.module.train()
        self.ddp: torch.nn.Module = self.module
        if context.world_size > 1:
            self.ddp = DistributedDataParallel(
                self.module,
                device_ids=[context.device] if context.device.type == "cuda" else None,
                gradient_as_bucket_view=True,
                # Compiled code and models with unused parameters cannot guarantee a static graph.
                static_graph=not (args.find_unused_parameters or args.compile),
                find_unused_parameters=args.find_unused_parameters,
            )
        self.compiled = torch.compile(self.ddp) if args.compile else self.ddp
        self.trainable = [each for each in self.module.parameters() if each.requires_grad]
        self.updater = optimizer.Updater(self.trainable, args.lr, args.wd, args.clip, args.betas)
        self.optimizer = self.updater.optimizer
        if context.broadcast_object(checkpoint is not None):
            optimizer.load(self.optimizer, self.trainable, checkpoint, context)
        self.flops_per_token = spec.flops_per_token(self.module)
        self.local_backward_s = self.warm_up()

    def warm_up(self) -> float:
        """Run passes over padding, which have no loss and no gradient.

        Returns the seconds of a backward pass without communication, 0 if unknown. The first pass fixes the gradient
        buckets of DistributedDataParallel, and so the order of its sums. Without it, the first step after a resume
        would sum in another order than the same step of an uninterrupted run. It also compiles, connects and allocates
        before any work is at risk.
        """
        if self.context.world_size == 1:
            return 0.0
        batch = self.spec.train.batch(torch.full((self.args.batch,), PADDING))
        times = []
        for sync_gradients in (True, True, False, False):
            loss = self.forward(batch, sync_gradients)
            started = throughput.record_time(self.context.device)
            self.backward(loss, sync_gradients)
            times.append((started, throughput.record_time(self.context.device)))
        self.optimizer.zero_grad(set_to_none=True)
        if self.context.device.type == "cuda":
            torch.cuda.synchronize(self.context.device)
        return min(throughput.seconds_between(*pair) for pair in times[2:]) if self.spec.same_shape else 0.0

    def autocast(self) -> contextlib.AbstractContextManager:
        """Compute in bfloat16 if asked to. Weights and optimizer state stay in float32: bfloat16 loses small steps."""
        if not self.args.bf16:
            return contextlib.nullcontext()
        return torch.autocast(self.context.device.type, dtype=torch.bfloat16)

    def gradient_sync(self, enabled: bool) -> contextlib.AbstractContextManager:
        """Ranks exchange gradients in the last pass of a step only. Forward and backward both need this context."""
        return contextlib.nullcontext() if enabled or self.context.world_size == 1 else self.ddp.no_sync()

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor], sync_gradients: bool) -> torch.Tensor:
        """Sum of the losses of this rank's labels."""
        inputs, labels = (part.to(self.context.device, non_blocking=True) for part in batch)
        with self.gradient_sync(sync_gradients), self.autocast():
            return self.compiled(inputs, labels)

    def backward(self, loss: torch.Tensor, sync_gradients: bool) -> None:
        with self.gradient_sync(sync_gradients):
            loss.backward()

    def step(self, lr: float) -> torch.Tensor:
        """Take an optimizer step. Returns 1 if it was skipped, else 0."""
        return self.updater.step(lr)

    def checkpoint_bytes(self) -> int:
        """Size of a checkpoint: the weights, of adapters only those that change, and two optimizer states for each."""
        everything = list(self.module.parameters())
        saved = everything if len(self.trainable) == len(everything) else self.trainable
        sizes = (sum(each.numel() * each.element_size() for each in part) for part in (saved, self.trainable))
        weights, changing = sizes
        return weights + 2 * changing

    def save(self, folder: Path) -> None:
        """Write rank 0's model and optimizer state, which all ranks share."""
        self.spec.save(self.module, folder)
        optimizer.save(self.optimizer, self.trainable, folder)
