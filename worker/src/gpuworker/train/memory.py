"""Refusal, before anything is loaded, of a model that cannot fit the memory of the ranks."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

import torch

from gpuworker.train.distributed import DistributedContext
from gpuworker.train.model import ModelError
from gpuworker.train.train_spec import TrainSpec

FLOAT_BYTES = 4
STATES = 4  # weight, gradient, and two moments of AdamW, all float32
CGROUP = Path("/sys/fs/cgroup/memory.max")  # of cgroup v2
MEMINFO = Path("/proc/meminfo")


def require_room(spec: TrainSpec, args: argparse.Namespace, context: DistributedContext) -> None:
    """Raise ModelError if weights, gradients and optimizer states alone need more than there is. Collective.

    This is a lower bound: activations, communication buffers and gathered blocks come on top. With adapters only
    weights are counted, because the frozen ones below them are what needs memory.
    """
    needed = sum(each.numel() for each in spec.build_empty().parameters()) * FLOAT_BYTES
    if not getattr(args, "lora", False):
        needed *= STATES
    if args.engine == "fsdp":
        needed //= context.world_size
    if context.device.type == "cuda":
        available, where = torch.cuda.get_device_properties(context.device).total_memory, "the GPU"
    else:
        available, where = host_bytes() // context.local_world_size, "this container's share"
    with context.raise_on_all_ranks():
        if needed > available:
            raise ModelError(
                f"each rank needs more than {format_bytes(needed)} for weights, gradients and optimizer states, and "
                f"{where} has {format_bytes(available)}: {way_out(args)}"
            )


def way_out(args: argparse.Namespace) -> str:
    if args.engine == "fsdp":
        return "use more ranks or a smaller model"
    return "share the model with --engine fsdp, train adapters with --lora, or use a smaller model"


def format_bytes(count: float) -> str:
    """A size with three digits in the unit in which it is at least 1, as far as there is one."""
    units = ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while count >= 999.5 and len(units) > 1:
        count, units = count / 1024, units[1:]
    return f"{count:.3g} {units[0]}" if count < 999.5 else f"{count:.0f} {units[0]}"


def free_bytes(cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> int:
    """Memory that the node, or the container if that is less, can still give without taking it from a process."""
    lines = meminfo.read_text().splitlines()
    free = int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) << 10
    with contextlib.suppress(OSError, ValueError):  # no cgroup v2, or "max"
        stat = dict(line.split() for line in cgroup.with_name("memory.stat").read_text().splitlines())
        used = (
            int(cgroup.with_name("memory.current").read_text()) - int(stat["inactive_file"]) - int(stat["active_file"])
        )
        return min(free, int(cgroup.read_text()) - used)
    return free


def host_bytes(cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> int:
    """Memory of the node, or the container's limit if that is less."""
    total = int(next(line for line in meminfo.read_text().splitlines() if line.startswith("MemTotal")).split()[1]) << 10
    with contextlib.suppress(OSError, ValueError):  # no cgroup v2, or "max"
        return min(total, int(cgroup.read_text()))
    return total
