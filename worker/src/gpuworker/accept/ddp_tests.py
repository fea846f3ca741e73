"""All-reduce and a small DDP training across every process of a torchrun world.

  torchrun --standalone --nproc-per-node=2 -m gpuworker.accept.ddp_tests --device cpu
  torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 -m gpuworker.accept.ddp_tests

Every round fills the tensor anew with rank+1, so the right sum is world·(world+1)/2 in every round.
Exit code 0: all right; 3: wrong result. Only rank 0 writes reports.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from gpuworker.accept.report import write_json
from gpuworker.accept.training import tiny_training
from gpuworker.log import log

# Tensors that Gloo may still hold live here until the process group is gone. If its thread drops the last reference
# while destroy_process_group waits for that thread, both wait for the interpreter lock for ever (seen with torch 2.6).
ALIVE: list[torch.Tensor] = []


def reduce(tensor: torch.Tensor, op: dist.ReduceOp = dist.ReduceOp.SUM) -> torch.Tensor:
    """All-reduce in place."""
    ALIVE.append(tensor)
    dist.all_reduce(tensor, op=op)
    return tensor


def main() -> None:
    args = parse_args()
    device = pick_device(args.device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", timeout=datetime.timedelta(seconds=args.timeout)
    )
    try:
        ok = all_reduce(device, args)
        if args.train_smoke:
            ok = train_smoke(device, args) and ok
    finally:
        dist.destroy_process_group()
    sys.exit(0 if ok else 3)


def all_reduce(device: torch.device, args: argparse.Namespace) -> bool:
    rank, world = dist.get_rank(), dist.get_world_size()
    iters = args.iters or 2 * world
    numel = args.numel or (1 << 20 if device.type == "cpu" else 1 << 24)
    tensor = torch.empty(numel, device=device)
    expected = world * (world + 1) / 2
    wrong, seconds = torch.zeros(iters + 1, device=device), 0.0
    for iteration in range(iters + 1):  # the first round warms up and is checked, not timed
        tensor.fill_(rank + 1)
        dist.barrier()
        start = time.perf_counter()
        reduce(tensor)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds += (time.perf_counter() - start) * (iteration > 0)
        wrong[iteration] = not bool((tensor == expected).all())
    # The slowest rank and the wrong rounds of every rank count, not only this one's.
    time_s = reduce(torch.tensor([seconds], device=device), op=dist.ReduceOp.MAX).item()
    own = int(wrong.sum())  # kept apart: the sum over ranks comes by the operation that is on trial
    wrong_rounds = max(own, int(reduce(wrong, op=dist.ReduceOp.MAX).sum()))
    # Bus bandwidth of an all-reduce: bytes / time · 2(n-1)/n (NVIDIA nccl-tests, doc/PERFORMANCE.md); GB = 1e9 bytes.
    bandwidth = numel * 4 * iters / time_s * 2 * (world - 1) / world / 1e9
    result = {
        "world": world,
        "nodes": int(os.environ["GROUP_WORLD_SIZE"]),
        "iters": iters,
        "numel": numel,
        "time_s": time_s,
        "busbw_gbps": bandwidth,
        "wrong_iters": wrong_rounds,
        "ok": wrong_rounds == 0,
    }
    log("DDP", rank=rank, **result)
    if rank == 0:
        write_json(Path(args.report_dir) / args.report_name, result)
    return result["ok"]


def train_smoke(device: torch.device, args: argparse.Namespace) -> bool:
    """DDP of the small network: the loss, averaged over ranks, must fall below 0.8 of its start."""
    rank, world = dist.get_rank(), dist.get_world_size()
    losses = tiny_training(device, steps=args.steps, rank=rank, wrap=torch.nn.parallel.DistributedDataParallel)
    first, last = (reduce(torch.tensor(losses, device=device)) / world).tolist()
    result = {
        "world": world,
        "steps": args.steps,
        "loss_start": first,
        "loss_end": last,
        "improved": last < 0.8 * first,
    }
    log("TRAIN", rank=rank, **result)
    if rank == 0:
        write_json(Path(args.report_dir) / "ddp_training_result.json", result)
    return result["improved"]


def pick_device(name: str) -> torch.device:
    if name == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ddp-tests", description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--iters", type=int, default=0, help="timed rounds; 0: twice the world size")
    parser.add_argument("--numel", type=int, default=0, help="float32 elements; 0: 1 Mi on CPUs, 16 Mi on GPUs")
    parser.add_argument("--train-smoke", action="store_true", help="also train a small network with DDP")
    parser.add_argument("--steps", type=int, default=60, help="training steps of --train-smoke")
    parser.add_argument("--timeout", type=int, default=300, help="seconds until a stuck collective fails")
    parser.add_argument("--report-dir", default="reports")
    parser.add_argument("--report-name", default="ddp_tests_result.json")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start it with torchrun: torchrun --standalone --nproc-per-node=2 -m gpuworker.accept.ddp_tests")
    return args


if __name__ == "__main__":
    main()
