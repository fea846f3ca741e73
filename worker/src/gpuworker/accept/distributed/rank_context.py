"""One rank's view of the world: who it is, where it computes, and how results travel past the collectives on trial."""

from __future__ import annotations

import datetime
import json
import os
import socket
from dataclasses import dataclass, field

import torch
import torch.distributed as dist


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
    # Gloo may still hold tensors of finished collectives. If its thread drops the last reference while
    # destroy_process_group waits for that thread, both wait for the interpreter lock for ever (seen with torch 2.6).
    kept: list[torch.Tensor] = field(default_factory=list)

    @property
    def place(self) -> str:
        """Where to look for this rank: "rank 5 (node gpu-7, cuda:1)"."""
        return f"rank {self.rank} (node {self.node}, {self.device})"

    def injected(self, fault: str) -> bool:
        """Whether this rank is to have the fault: one rank has it, the last one unless told otherwise."""
        return self.inject == fault and self.rank == self.inject_rank % self.size

    def keep(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Let tensors live as long as the process group; gives the first."""
        if self.device.type == "cpu":
            self.kept += tensors
        return tensors[0]

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
    place = torch.device("cpu") if device == "cpu" else torch.device("cuda", local_rank)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    timeout = datetime.timedelta(seconds=timeout_s)
    store.set_timeout(timeout)
    # A prefix keeps the keys of the process group and of our results apart.
    group_store = dist.PrefixStore("group", store)
    dist.init_process_group(
        "gloo" if place.type == "cpu" else "nccl", store=group_store, rank=rank, world_size=size, timeout=timeout
    )
    node = os.environ.get("NODE_NAME") or socket.gethostname()
    return World(rank, size, local_rank, place, dist.PrefixStore("results", store), node, **fields)
