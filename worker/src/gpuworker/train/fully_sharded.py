"""FSDP2 (`fully_shard`): every rank holds a part of each parameter, of its gradient and of its optimizer state.

A block of layers is whole only while it computes. The model is built without memory (on the meta device), and then
every rank allocates its part. Checkpoints are written and read by torch.distributed.checkpoint: every rank writes its
part, and any number of ranks can read them.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from gpuworker.train import malloc, optimizer
from gpuworker.train.checkpoint_files import SHARDS, SHARED, ResumeError, UnreadableCheckpointError
from gpuworker.train.distributed import DistributedContext
from gpuworker.train.engine import Engine
from gpuworker.train.model_files import describe_misfit
from gpuworker.train.schedule import derive_seed
from gpuworker.train.train_spec import TrainSpec


class FullyShardedModel(Engine):
    """Sharded model. With --bf16 or --fp16, blocks are gathered and computed so; a rank's parts stay in float32."""

    sharded = True

    def __init__(self, spec: TrainSpec, args: argparse.Namespace, context: DistributedContext, checkpoint: Path | None):
        super().__init__(spec, args, context)
        if context.device.type == "cpu":
            malloc.return_freed_memory()
        if not dist.is_initialized():  # one process that torchrun has not started
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        with context.raise_on_all_ranks():
            self.module = spec.build_empty()
            self.shard()
        self.module.train()
        resumed = context.broadcast_object(str(checkpoint) if checkpoint else "")
        if resumed:  # the parameters are read below; buffers are not saved
            with torch.no_grad(), warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="DTensor random operators")
                spec.initialize(self.module)
        else:
            self.load_weights()
        self.warm_up()
        self.make_optimizer()
        optimizer.allocate(self.optimizer, self.trainable)
        if resumed:
            self.load(Path(resumed))

    def shard(self) -> None:
        device, kind = self.context.device, self.compute_type
        settings = {
            "mesh": init_device_mesh(device.type, (self.context.world_size,)),
            "mp_policy": MixedPrecisionPolicy(param_dtype=kind, reduce_dtype=torch.float32 if kind else None),
        }
        for block in blocks(self.module):
            fully_shard(block, **settings)
        fully_shard(self.module, **settings)
        self.module.to_empty(device=device)

    def load_weights(self) -> None:
        """Give every rank its part of the weights that rank 0 loads, or draws, in the memory of its host."""
        whole: nn.Module | None = None
        torch.manual_seed(derive_seed(self.args.seed, 1, 0))  # the same random weights as with every engine
        with self.context.raise_on_all_ranks():
            if self.context.is_rank_0:
                whole = self.spec.build(self.context, None, torch.device("cpu"))
        found = dict([*whole.named_parameters(), *whole.named_buffers()]) if whole else {}
        with torch.no_grad():
            for name, target in [*self.module.named_parameters(), *self.module.named_buffers()]:
                full = torch.empty(target.shape, dtype=target.dtype, device=self.context.device)
                if whole:
                    full.copy_(found[name])
                self.context.broadcast_tensor(full)
                local = optimizer.local_part(target)
                if local is target:
                    target.copy_(full)
                elif local.numel():
                    local.copy_(full.chunk(self.context.world_size)[self.context.rank])

    def warm_up(self) -> None:
        """Connect and allocate before any work is at risk."""
        self.backward(self.forward(self.padding(), True), True)
        self.module.zero_grad(set_to_none=True)

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor], sync_gradients: bool) -> torch.Tensor:
        inputs, labels = self.to_device(batch)
        return self.module(inputs, labels)

    def backward(self, loss: torch.Tensor, sync_gradients: bool) -> None:
        """Reduces gradients in every pass: whole gradients of all blocks would need the memory that sharding saves."""
        loss.backward()

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        states = {name: self.optimizer.state[each] for name, each in self.named.items() if each.requires_grad}
        found = {key: {name: state[key] for name, state in states.items()} for key in optimizer.STATE_TENSORS}
        return {"model": {name: each.detach() for name, each in self.named.items()}, **found}

    def copy_bytes(self) -> int:
        return self.checkpoint_bytes() * self.context.local_world_size // self.context.world_size

    def save(self, folder: Path, in_background: bool, background: DistributedContext) -> Callable[[], None]:
        """All ranks write their parts."""
        to = {
            "storage_writer": dcp.FileSystemWriter(folder / SHARDS, sync_files=True),
            "process_group": background.group,
        }
        saved = dcp.async_save(self.state(), **to) if in_background else None

        def write() -> None:
            if self.context.is_rank_0:
                self.spec.save_description(self.module, folder / SHARED)
            saved.result() if saved else dcp.save(self.state(), **to)

        return write

    def load(self, folder: Path) -> None:
        """Read this rank's part of each tensor, whatever number of ranks has written it."""
        with self.context.raise_on_all_ranks():
            if not (folder / SHARDS / ".metadata").is_file():
                raise UnreadableCheckpointError(f"{folder / SHARDS}: rank {self.context.rank} does not see it")
        reader, state = dcp.FileSystemReader(folder / SHARDS), self.state()
        with self.context.raise_on_all_ranks():
            require_same_tensors(folder, reader.read_metadata().state_dict_metadata, state)
        dcp.load(state, storage_reader=reader)


def require_same_tensors(folder: Path, saved: dict, state: dict[str, dict[str, torch.Tensor]]) -> None:
    """Raise ResumeError unless a checkpoint holds exactly these tensors: what is too much would be left out."""
    sizes = {f"{key}.{name}": tuple(each.shape) for key, group in state.items() for name, each in group.items()}
    found = {name: tuple(getattr(entry, "size", ())) for name, entry in saved.items()}
    shapes = [name for name in sizes if name in found and found[name] != sizes[name]]
    if misfit := describe_misfit(sizes.keys() - found.keys(), found.keys() - sizes.keys(), shapes):
        raise ResumeError(f"{folder} holds another model: {misfit}; choose another --run")


def blocks(module: nn.Module) -> list[nn.Module]:
    """The units that are gathered one at a time: members of the outermost lists of layers."""
    found: list[nn.Module] = []
    for child in module.children():
        found += list(child) if isinstance(child, nn.ModuleList) else blocks(child)
    return found
