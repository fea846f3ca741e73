"""DistributedDataParallel: every rank holds the whole model and the whole optimizer state."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from gpuworker.train import optimizer, throughput
from gpuworker.train.checkpoint_files import SHARED
from gpuworker.train.distributed import DistributedContext
from gpuworker.train.engine import Engine, allocate
from gpuworker.train.schedule import derive_seed
from gpuworker.train.train_spec import TrainSpec


class DataParallelModel(Engine):
    """Replicated model. `module` is not wrapped."""

    def __init__(self, spec: TrainSpec, args: argparse.Namespace, context: DistributedContext, checkpoint: Path | None):
        super().__init__(spec, args, context)
        shared = checkpoint / SHARED if checkpoint else None
        torch.manual_seed(derive_seed(args.seed, 1, 0))  # initial weights of --from-scratch
        with context.raise_on_all_ranks():
            # Rank 0 sends its weights below. The others allocate them on the device: a copy of the model per local rank
            # could exceed the host's memory.
            self.module = spec.build(context, shared) if context.is_rank_0 else spec.build_empty()
        if not context.is_rank_0:
            allocate(self.module, context.device)
        self.module.train()
        self.ddp: torch.nn.Module = self.module
        if context.world_size > 1:
            for buffer in self.module.buffers():  # once: they do not change, and only rank 0 has read weights
                context.broadcast_tensor(buffer)
            self.ddp = DistributedDataParallel(
                self.module,
                device_ids=[context.device] if context.device.type == "cuda" else None,
                gradient_as_bucket_view=True,
                broadcast_buffers=False,
                # Compiled code and models with unused parameters cannot guarantee a static graph.
                static_graph=not (args.find_unused_parameters or args.compile),
                find_unused_parameters=args.find_unused_parameters,
            )
        self.compiled = torch.compile(self.ddp) if args.compile else self.ddp
        self.make_optimizer()
        if context.broadcast_object(checkpoint is not None):
            optimizer.load(self.optimizer, self.trainable, shared, context)
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
        batch = self.padding()
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
        if not self.compute_type:
            return contextlib.nullcontext()
        return torch.autocast(self.context.device.type, dtype=self.compute_type)

    def gradient_sync(self, enabled: bool) -> contextlib.AbstractContextManager:
        """Ranks exchange gradients in the last pass of a step only. Forward and backward both need this context."""
        return contextlib.nullcontext() if enabled or self.context.world_size == 1 else self.ddp.no_sync()

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor], sync_gradients: bool) -> torch.Tensor:
        inputs, labels = self.to_device(batch)
        with self.gradient_sync(sync_gradients), self.autocast():
            return self.compiled(inputs, labels)

    def backward(self, loss: torch.Tensor, sync_gradients: bool) -> None:
        with self.gradient_sync(sync_gradients):
            loss.backward()

    def copy_bytes(self) -> int:
        return self.checkpoint_bytes() if self.context.is_rank_0 else 0

    def save(self, folder: Path, in_background: bool, background: DistributedContext) -> Callable[[], None]:
        """Rank 0 writes model and optimizer state, which all ranks share."""
        weights, moments = self.module.state_dict(), optimizer.state_of(self.optimizer, self.trainable)
        if self.context.is_rank_0 and in_background:
            frozen = {each.data_ptr() for each in self.named.values() if not each.requires_grad}
            weights = copy_changing(weights, frozen)
            moments = {name: [copy_of(each) for each in tensors] for name, tensors in moments.items()}

        def write() -> None:
            if self.context.is_rank_0:
                self.spec.save(self.module, weights, folder / SHARED)
                optimizer.save(moments, folder / SHARED)

        return write


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, device="cpu").copy_(tensor)


def copy_changing(weights: dict[str, torch.Tensor], frozen: set[int]) -> dict[str, torch.Tensor]:
    """Copies of the weights on the host. What never changes is not copied, and tensors of two names remain one."""
    copies: dict[tuple, torch.Tensor] = {}
    for tensor in weights.values():
        key = (tensor.data_ptr(), tensor.shape)
        if key not in copies:
            copies[key] = tensor if tensor.data_ptr() in frozen else copy_of(tensor)
    return {name: copies[tensor.data_ptr(), tensor.shape] for name, tensor in weights.items()}
