"""Default process group of torch.distributed: device, creation, destruction, and workarounds for
faults of Gloo.
"""

from __future__ import annotations

import atexit
import collections
import datetime
import os
import sys
from typing import NoReturn

import torch
import torch.distributed as dist

KEPT_TENSORS = 16
_kept: collections.deque[torch.Tensor] = collections.deque(maxlen=KEPT_TENSORS)


class DeviceError(ValueError):
    """No GPU for this process, or one that cannot do what is asked for."""


def select_device(kind: str, local_rank: int) -> torch.device:
    """The CPU, or for `kind` "cuda" the GPU of this local rank, as the current device. Raises
    DeviceError.
    """
    if kind == "cpu":
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise DeviceError(
            f"local rank {local_rank} has no GPU: {torch.cuda.device_count()} are visible; start "
            "as many processes per node as the node has GPUs, or use --device cpu"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def init(
    device: torch.device,
    *,
    cpu_collectives: bool = False,
    timeout_s: float | None = None,
    **rendezvous: object,
) -> None:
    """Create the default group: NCCL for a GPU, Gloo for the CPU.

    `cpu_collectives` adds Gloo for CPU tensors to NCCL. NCCL then connects during the call, so a
    network fault appears here and not in the first step. `timeout_s` limits each collective; None
    leaves it to torch, or to ddp-launch. `rendezvous`: store, rank and world_size; without them
    torchrun's variables are used.
    """
    gpu = device.type == "cuda"
    backend = "gloo" if not gpu else "cpu:gloo,cuda:nccl" if cpu_collectives else "nccl"
    rendezvous |= {"timeout": datetime.timedelta(seconds=timeout_s)} if timeout_s else {}
    dist.init_process_group(
        backend, device_id=device if gpu and cpu_collectives else None, **rendezvous
    )


def barrier(device: torch.device) -> None:
    """Wait for all ranks, on this rank's GPU. Without its index NCCL guesses one from the rank,
    and warns of it.
    """
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)


def keep_alive(*tensors: torch.Tensor) -> torch.Tensor:
    """Keep references to the last CPU tensors of collectives. Returns the first tensor.

    Gloo's thread may drop the last reference to a tensor while the group is destroyed. The thread
    and the destroying thread then wait for the interpreter lock forever (seen with torch 2.6).
    """
    _kept.extend(tensor for tensor in tensors if tensor.device.type == "cpu")
    return tensors[0]


def destroy() -> None:
    """Destroy the default group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def exit_now(code: int) -> NoReturn:
    """Exit without finalizing the interpreter and without the exit handlers that are registered so
    far.

    Gloo's thread may release a tensor during finalization, which aborts the process ("terminate
    called without an active exception", torch 2.14 and 2.15, once in hundreds of runs).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    atexit.register(os._exit, code)
    sys.exit(code)
