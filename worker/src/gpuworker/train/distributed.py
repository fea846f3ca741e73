"""All processes of a run: who this one is, and what they tell each other."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import TypeVar

import torch
import torch.distributed as dist

from gpuworker.train import malloc, trackers

Thing = TypeVar("Thing")


class World:
    """The processes that torchrun started, or this one alone. `join` it, then every method but `close` is collective.

    Control travels on CPU tensors (gloo), so that it never waits for what a GPU still has to do.
    """

    device = torch.device("cpu")

    def __init__(self) -> None:
        env = os.environ
        self.rank, self.size = int(env.get("RANK", "0")), int(env.get("WORLD_SIZE", "1"))
        self.local_rank, self.local_size = int(env.get("LOCAL_RANK", "0")), int(env.get("LOCAL_WORLD_SIZE", "1"))
        # NODE_RANK is the pod's index; plain torchrun says GROUP_RANK.
        self.node = int(env.get("NODE_RANK") or env.get("GROUP_RANK") or "0")
        self.nodes = max(1, self.size // self.local_size)
        self.alive: list[torch.Tensor] = []

    def join(self, device: str) -> None:
        """Take this process's device, `cpu`, `cuda` or empty for what there is, and meet the other ranks."""
        cuda = (device or ("cuda" if torch.cuda.is_available() else "cpu")) == "cuda"
        if cuda:
            if self.local_rank >= torch.cuda.device_count():
                raise DeviceError(
                    f"local rank {self.local_rank} has no GPU of its own: {torch.cuda.device_count()} are visible; "
                    "start as many processes a node as it has GPUs, or use --device cpu"
                )
            self.device = torch.device("cuda", self.local_rank)
            torch.cuda.set_device(self.device)
            torch.set_float32_matmul_precision("high")  # TF32 where bfloat16 is not asked for
        else:
            malloc.keep_freed()
        if "RANK" in os.environ:
            # No time-out of its own: ddp-launch sets one for the start and another after the first step. With its
            # device, NCCL connects now, and a fault of the network shows here and not in the first step.
            dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", device_id=self.device if cuda else None)

    @property
    def lead(self) -> bool:
        return self.rank == 0

    @property
    def node_lead(self) -> bool:
        return self.local_rank == 0

    def for_trackers(self) -> trackers.World:
        return trackers.World(self.rank, self.local_rank, self.node, self.size, self.nodes)

    # -- collectives

    def sum(self, *numbers: float) -> list[float]:
        """The sums over all ranks, in float64: one message for all of them."""
        return self._reduce(numbers, dist.ReduceOp.SUM)

    def max(self, *numbers: float) -> list[float]:
        return self._reduce(numbers, dist.ReduceOp.MAX)

    def _reduce(self, numbers: tuple[float, ...], op: dist.ReduceOp.RedOpType) -> list[float]:
        if self.size == 1:
            return list(numbers)
        tensor = self.keep(torch.tensor(numbers, dtype=torch.float64))
        dist.all_reduce(tensor, op=op)
        return tensor.tolist()

    def broadcast(self, thing: Thing) -> Thing:
        """Rank 0's. For small things that `pickle` knows."""
        if self.size == 1:
            return thing
        box = [thing]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def broadcast_tensor(self, tensor: torch.Tensor) -> None:
        """Rank 0's, into the tensor of this rank: the same shape and type on all."""
        if self.size > 1:
            dist.broadcast(tensor, src=0)

    def gather(self, thing: Thing) -> list[Thing]:
        """That of every rank, on every rank."""
        if self.size == 1:
            return [thing]
        things: list = [None] * self.size
        dist.all_gather_object(things, thing)
        return things

    def barrier(self) -> None:
        self.sum(0.0)

    @contextlib.contextmanager
    def all_or_none(self) -> Iterator[None]:
        """If the block raises on some ranks, all raise: the first error, so that none waits for one that has gone."""
        error: Exception | None = None
        try:
            yield
        except Exception as caught:
            error = caught
        errors = self.gather(f"{type(error).__name__}: {error}" if error else "")
        if error:
            raise error
        if first := next(filter(None, errors), ""):
            raise PeerError(f"rank {errors.index(first)} failed: {first}")

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Gloo's thread may drop the last reference of a tensor while the group is destroyed, and then both wait for
        the interpreter's lock for ever (seen with torch 2.6): the last ones stay until the group is gone."""
        self.alive = [*self.alive[-15:], tensor]
        return tensor

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


class DeviceError(ValueError):
    """No device for this process."""


class PeerError(RuntimeError):
    """Another rank failed; its own words are in its log and in this."""


def host() -> str:
    return os.environ.get("NODE_NAME") or socket.gethostname()
