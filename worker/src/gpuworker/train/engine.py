"""The model as all ranks train it together: forward, backward, step, save. The seam for other ways to spread a model.

This one is DistributedDataParallel: every rank has the whole model and the whole state of the optimizer.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from gpuworker.train import optimizer, throughput
from gpuworker.train.distributed import World
from gpuworker.train.schedule import PADDING, mix
from gpuworker.train.task import Task


class Engine:
    """`plain` is the module itself, for evaluation; `trained` are its parameters that change."""

    def __init__(self, task: Task, args: argparse.Namespace, world: World, checkpoint: Path | None):
        """Build the model and its optimizer, from rank 0's checkpoint if it has one. Collective."""
        self.task, self.args, self.world = task, args, world
        torch.manual_seed(mix(args.seed, 1, 0))  # the weights of a model from nothing
        with world.all_or_none():
            self.plain = task.build(world, checkpoint)
        self.plain.train()
        self.wrapped: torch.nn.Module = self.plain
        if world.size > 1:
            self.wrapped = DistributedDataParallel(
                self.plain,
                device_ids=[world.device] if world.device.type == "cuda" else None,
                gradient_as_bucket_view=True,
                # Neither compiled code nor a varying model can promise it.
                static_graph=not (args.find_unused_parameters or args.compile),
                find_unused_parameters=args.find_unused_parameters,
            )
        self.module = torch.compile(self.wrapped) if args.compile else self.wrapped
        self.trained = [each for each in self.plain.parameters() if each.requires_grad]
        self.optimizer = optimizer.adamw(self.trained, args.lr, args.wd)
        if world.broadcast(checkpoint is not None):
            optimizer.load(self.optimizer, self.trained, checkpoint, world)
        self.flops = task.flops(self.plain)
        self.alone_s = self.warm_up()

    def warm_up(self) -> float:
        """Passes over padding: no loss, no gradient. Seconds of a backward pass without communication, 0 if unknown.

        The first pass settles how DistributedDataParallel groups gradients, and so the order of its sums. Without it,
        the first step after a resume would sum in another order than the same step of a run that went on. It also
        compiles, connects, and takes the memory, before any work is at risk.
        """
        if self.world.size == 1:
            return 0.0
        batch = self.task.train.batch(torch.full((self.args.batch,), PADDING))
        times = []
        for synchronise in (True, True, False, False):
            loss = self.forward(batch, synchronise)
            begun = throughput.mark(self.world.device)
            self.backward(loss, synchronise)
            times.append((begun, throughput.mark(self.world.device)))
        self.optimizer.zero_grad(set_to_none=True)
        if self.world.device.type == "cuda":
            torch.cuda.synchronize(self.world.device)
        same_shape = getattr(self.args, "pack", True)
        return min(throughput.seconds_between(*pair) for pair in times[2:]) if same_shape else 0.0

    def precision(self) -> contextlib.AbstractContextManager:
        """The weights stay in float32, the optimizer's state too: bfloat16 loses small steps."""
        if not self.args.bf16:
            return contextlib.nullcontext()
        return torch.autocast(self.world.device.type, dtype=torch.bfloat16)

    def sync(self, synchronise: bool) -> contextlib.AbstractContextManager:
        """Gradients cross ranks with the last pass of a step only; DistributedDataParallel wants both halves told."""
        return contextlib.nullcontext() if synchronise or self.world.size == 1 else self.wrapped.no_sync()

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor], synchronise: bool) -> torch.Tensor:
        """The sum of the losses of this rank's labels."""
        inputs, labels = (part.to(self.world.device, non_blocking=True) for part in batch)
        with self.sync(synchronise), self.precision():
            return self.module(inputs, labels)

    def backward(self, loss: torch.Tensor, synchronise: bool) -> None:
        with self.sync(synchronise):
            loss.backward()

    def step(self, rate: float) -> None:
        optimizer.step(self.optimizer, self.trained, rate, self.args.clip)

    def save(self, folder: Path) -> None:
        """Rank 0's, which is everybody's."""
        self.task.save(self.plain, folder)
        optimizer.save(self.optimizer, self.trained, folder)
