"""Identity and device of one rank, and a store for results that does not use the collectives
under test.
"""

from __future__ import annotations

import datetime
import json
import os
import socket
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from gpuworker.runtime import process_group


@dataclass
class RankContext:
    """A rank among `size` ranks. Results travel through `store`, so a broken collective cannot
    break its own report.
    """

    rank: int
    size: int
    local_rank: int
    device: torch.device
    store: dist.Store
    node: str
    nodes: int = 1
    inject: str = ""  # fault that one rank injects
    inject_rank: int = -1
    shared: int = 0  # values of rank 0, by `share`
    entered: int = 0  # collectives
    world: Connection | None = None  # of a local world, which is told of them

    @property
    def label(self) -> str:
        """Name of this rank in messages: "rank 5 (node gpu-7, cuda:1)"."""
        return f"rank {self.rank} (node {self.node}, {self.device})"

    @property
    def gpu_model(self) -> str:
        """The name that torch gives it; "" on the CPU."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else ""

    def injected(self, fault: str) -> bool:
        """Whether this rank injects the fault: one rank does, by default the last one."""
        return self.inject == fault and self.rank == self.inject_rank % self.size

    def enter(self, name: str) -> None:
        """Record that this rank enters the collective `name`, before it does: a hang then names
        the other ranks.
        """
        if self.world:
            self.entered += 1
            self.world.send((self.entered, name))

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def post(self, key: str, value: object) -> None:
        self.store.set(f"{key}/{self.rank}", json.dumps(value))

    def gather(self, key: str, value: object) -> list:
        """On rank 0 the values of all ranks, by rank; elsewhere an empty list. A key is used once.

        Raises the store's error on rank 0 if a rank does not post in time.
        """
        self.post(key, value)
        return (
            [json.loads(self.store.get(f"{key}/{rank}")) for rank in range(self.size)]
            if self.rank == 0
            else []
        )

    def barrier(self, key: str) -> None:
        """Wait for all ranks without a collective. A key is used once."""
        self.enter(f"the barrier {key}")
        if self.store.add(key, 1) == self.size:
            self.store.set(f"{key}/all", "joined")
        self.store.wait([f"{key}/all"])

    def share(self, value: object) -> object:
        """Rank 0's value on all ranks, without a collective."""
        self.shared += 1
        key = f"shared/{self.shared}"
        if self.rank == 0:
            self.store.set(key, json.dumps(value))
        return json.loads(self.store.get(key))


def from_torchrun(
    device: str, timeout_s: float, inject: str = "", inject_rank: int = -1
) -> RankContext:
    """The context of a rank that torchrun started, with its process group."""
    store, rank, size = next(
        dist.rendezvous("env://", timeout=datetime.timedelta(seconds=timeout_s))
    )
    return join(
        store, rank, size, int(os.environ["LOCAL_RANK"]), device, timeout_s,
        nodes=int(os.environ["GROUP_WORLD_SIZE"]), inject=inject, inject_rank=inject_rank,
    )  # fmt: skip


def join(
    store: dist.Store,
    rank: int,
    size: int,
    local_rank: int,
    device: str,
    timeout_s: float,
    **fields: object,
) -> RankContext:
    """Select the device and create the process group."""
    selected = process_group.select_device(device, local_rank)
    store.set_timeout(datetime.timedelta(seconds=timeout_s))
    # A prefix keeps the keys of the process group and of our results apart.
    group_store = dist.PrefixStore("group", store)
    process_group.init(selected, timeout_s=timeout_s, store=group_store, rank=rank, world_size=size)
    node = os.environ.get("NODE_NAME") or socket.gethostname()
    return RankContext(
        rank, size, local_rank, selected, dist.PrefixStore("results", store), node, **fields
    )
