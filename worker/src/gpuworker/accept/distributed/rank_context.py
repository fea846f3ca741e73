"""One rank's view of the world: who it is, where it computes, and how results travel past the collectives on trial."""

from __future__ import annotations

import datetime
import json
import os
import socket
from dataclasses import dataclass

import torch
import torch.distributed as dist

from gpuworker.runtime import process_group


@dataclass
class World:
    """A rank among `size` ranks. `store` carries results, so that a broken collective cannot break its own report."""

    rank: int
    size: int
    local_rank: int
    device: torch.device
    store: dist.Store
    node: str
    nodes: int = 1
    inject: str = ""  # a fault that one rank puts in on purpose
    inject_rank: int = -1
    turns: int = 0  # of loops that rank 0 decides on

    @property
    def place(self) -> str:
        """Where to look for this rank: "rank 5 (node gpu-7, cuda:1)"."""
        return f"rank {self.rank} (node {self.node}, {self.device})"

    def injected(self, fault: str) -> bool:
        """Whether this rank is to have the fault: one rank has it, the last one unless told otherwise."""
        return self.inject == fault and self.rank == self.inject_rank % self.size

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def post(self, key: str, value: object) -> None:
        self.store.set(f"{key}/{self.rank}", json.dumps(value))

    def meet(self, key: str) -> None:
        """Wait for all ranks without a collective. A key serves once."""
        if self.store.add(key, 1) == self.size:
            self.store.set(f"{key}/all", "here")
        self.store.wait([f"{key}/all"])

    def collect(self, key: str) -> list:
        """What every rank posted under a key, by rank. Raises the store's error if one does not post in time."""
        return [json.loads(self.store.get(f"{key}/{rank}")) for rank in range(self.size)]


def from_torchrun(device: str, timeout_s: float, inject: str = "", inject_rank: int = -1) -> World:
    """Join the world that torchrun made, and its process group."""
    store, rank, size = next(dist.rendezvous("env://", timeout=datetime.timedelta(seconds=timeout_s)))
    return join(
        store, rank, size, int(os.environ["LOCAL_RANK"]), device, timeout_s,
        nodes=int(os.environ["GROUP_WORLD_SIZE"]), inject=inject, inject_rank=inject_rank,
    )  # fmt: skip


def join(
    store: dist.Store, rank: int, size: int, local_rank: int, device: str, timeout_s: float, **fields: object
) -> World:
    """Pick the device and make the process group: NCCL for GPUs, else Gloo."""
    place = process_group.select_device(device, local_rank)
    store.set_timeout(datetime.timedelta(seconds=timeout_s))
    # A prefix keeps the keys of the process group and of our results apart.
    group_store = dist.PrefixStore("group", store)
    process_group.init(place, timeout_s=timeout_s, store=group_store, rank=rank, world_size=size)
    node = os.environ.get("NODE_NAME") or socket.gethostname()
    return World(rank, size, local_rank, place, dist.PrefixStore("results", store), node, **fields)
