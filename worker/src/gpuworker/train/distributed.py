"""Ranks of a run: identity of this process, and collectives between all of them."""

from __future__ import annotations

import contextlib
import copy
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from gpuworker.runtime import process_group
from gpuworker.train import malloc, trackers

T = TypeVar("T")
WORLD = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # set by torchrun


class WorldError(ValueError):
    """The environment names a world, but not all of it."""


class DistributedContext:
    """The processes that torchrun started, or this one alone. After `initialize`, all methods are collective.

    Control messages travel on CPU tensors (Gloo), so they never wait for queued work of a GPU.
    """

    device = torch.device("cpu")
    translate: Callable[[Exception], Exception] = staticmethod(lambda error: error)
    group: dist.ProcessGroup | None = None  # of control messages; None: the default group

    def __init__(self, usage_errors: tuple[type[Exception], ...] = ()) -> None:
        self.usage_errors = usage_errors
        env = os.environ
        self.rank, self.world_size = int(env.get("RANK", "0")), int(env.get("WORLD_SIZE", "1"))
        self.local_rank, self.local_world_size = int(env.get("LOCAL_RANK", "0")), int(env.get("LOCAL_WORLD_SIZE", "1"))
        # NODE_RANK is the pod's index. Plain torchrun sets GROUP_RANK.
        self.node_rank = int(env.get("NODE_RANK") or env.get("GROUP_RANK") or "0")
        self.nnodes = max(1, self.world_size // self.local_world_size)

    def initialize(self, device: str) -> None:
        """Select the device (`cpu`, `cuda`, or empty for cuda where there is one) and join the process group."""
        kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.device = process_group.select_device(kind, self.local_rank)
        if kind == "cuda":
            torch.set_float32_matmul_precision("high")  # TF32 where bfloat16 is not asked for
        else:
            malloc.retain_freed_memory()
        if "RANK" in os.environ or self.world_size > 1:
            if missing := [name for name in WORLD if not os.environ.get(name)]:
                raise WorldError(f"a world needs {', '.join(WORLD)}, and {missing[0]} is not set: start with torchrun")
            # No timeout: ddp-launch sets one for the start and another one after the first step.
            process_group.init(self.device, cpu_collectives=True)

    def translating(self, translate: Callable[[Exception], Exception]) -> DistributedContext:
        """The same ranks, of which `raise_on_all_ranks` raises what `translate` makes of an error."""
        other = copy.copy(self)
        other.translate = translate
        return other

    def separate(self) -> DistributedContext:
        """The same ranks with control messages of their own, for another thread. Collective."""
        other = copy.copy(self)
        if self.world_size > 1:
            other.group = dist.new_group(backend="gloo")
        return other

    @property
    def is_rank_0(self) -> bool:
        return self.rank == 0

    @property
    def is_local_rank_0(self) -> bool:
        return self.local_rank == 0

    def rank_info(self) -> trackers.RankInfo:
        return trackers.RankInfo(self.rank, self.local_rank, self.node_rank, self.world_size, self.nnodes)

    # -- collectives

    def all_reduce_sum(self, *numbers: float) -> list[float]:
        """Sums over all ranks in float64, with one message for all numbers."""
        if self.world_size == 1:
            return list(numbers)
        tensor = process_group.keep_alive(torch.tensor(numbers, dtype=torch.float64))
        dist.all_reduce(tensor, group=self.group)
        return tensor.tolist()

    def broadcast_object(self, value: T) -> T:
        """Rank 0's value. For small objects that can be pickled."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.group, device=torch.device("cpu"))
        return box[0]

    def broadcast_tensor(self, tensor: torch.Tensor) -> None:
        """Overwrite the tensor of every rank with rank 0's, which has the same shape and type."""
        if self.world_size > 1:
            dist.broadcast(tensor, src=0)

    def all_gather_object(self, value: T) -> list[T]:
        """Values of all ranks, on every rank."""
        if self.world_size == 1:
            return [value]
        values: list = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def ranks_that_see(self, folder: Path) -> list[bool]:
        """For each rank, whether it sees in its folder what rank 0 writes into its own one. Collective."""
        path = folder / self.broadcast_object(f".seen-by-all-{uuid.uuid4().hex[:8]}")
        with self.raise_on_all_ranks():
            if self.is_rank_0:
                path.touch()
        seen = self.all_gather_object(path.is_file())
        if self.is_rank_0:
            path.unlink()
        return seen

    @contextlib.contextmanager
    def raise_on_all_ranks(self) -> Iterator[None]:
        """If the block raises on some ranks, raise the first error on all ranks, so that none waits for a lost one."""
        error: Exception | None = None
        try:
            yield
        except Exception as caught:
            error = self.translate(caught)
        text = f"{type(error).__name__}: {error}" if error else ""
        errors = self.all_gather_object((text, isinstance(error, self.usage_errors)))
        if error:
            raise error
        for rank, (text, usage) in enumerate(errors):
            if text:
                raise PeerError(f"rank {rank} failed: {text}", usage)


class PeerError(RuntimeError):
    """Another rank failed. The message contains that rank's error. `usage`: a restart does not help."""

    def __init__(self, message: str, usage: bool):
        super().__init__(message)
        self.usage = usage


def host_name() -> str:
    return os.environ.get("NODE_NAME") or socket.gethostname()
