"""All-reduce and a small DDP training across every process of a torchrun world; more tests by name.

  torchrun --standalone --nproc-per-node=2 -m gpuworker.accept.ddp_tests --device cpu
  torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 -m gpuworker.accept.ddp_tests
  ddp-launch -m gpuworker.accept.ddp_tests --locate --sweep

Without names the all-reduce runs: every round fills the tensor anew with rank+1, so the right sum is
world·(world+1)/2 in every round. Exit code 0: all right; 3: a wrong result, or one that is missing. Only rank 0
writes reports: ddp_tests_result.json, ddp_training_result.json, and ddp_NAME_result.json for each test by name.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from gpuworker.accept import distributed_suite
from gpuworker.accept.distributed.rank_context import World, from_torchrun
from gpuworker.accept.kernels.tiny_classifier import tiny_training
from gpuworker.accept.registry import LEVELS
from gpuworker.accept.report import write_json
from gpuworker.runtime import process_group
from gpuworker.runtime.log import log


def main() -> None:
    args = parse_args()
    distributed_suite.prepare(args)
    world = from_torchrun(args.device, args.timeout, args.inject, args.inject_rank)
    ok = distributed_suite.run(world, args)
    if not any(getattr(args, name) for name in distributed_suite.TESTS):
        ok = all_reduce(world, args)
    if args.train_smoke:
        ok = train_smoke(world, args) and ok
    if world.rank == 0:
        world.store.set("written", "yes")
    world.store.wait(["written"])  # torchrun ends rank 0 as soon as another one has exited with 3
    process_group.destroy()
    process_group.exit_now(0 if ok else 3)


def reduce(world: World, tensor: torch.Tensor, op: dist.ReduceOp = dist.ReduceOp.SUM) -> torch.Tensor:
    """All-reduce in place."""
    dist.all_reduce(process_group.keep_alive(tensor), op=op)
    return tensor


def all_reduce(world: World, args: argparse.Namespace) -> bool:
    rank, size, device = world.rank, world.size, world.device
    iters = args.iters or 2 * size
    numel = args.numel or (1 << 20 if device.type == "cpu" else 1 << 24)
    tensor = torch.empty(numel, device=device)
    expected = size * (size + 1) / 2
    wrong, seconds = torch.zeros(iters + 1, device=device), 0.0
    for iteration in range(iters + 1):  # the first round warms up and is checked, not timed
        tensor.fill_(rank + 1)
        dist.barrier()
        start = time.perf_counter()
        reduce(world, tensor)
        world.synchronize()
        seconds += (time.perf_counter() - start) * (iteration > 0)
        if world.injected("wrong-element"):
            tensor[-1] += 1
        wrong[iteration] = not bool((tensor == expected).all())
    # The slowest rank and the wrong rounds of every rank count, not only this one's.
    time_s = reduce(world, torch.tensor([seconds], device=device), op=dist.ReduceOp.MAX).item()
    own = int(wrong.sum())  # kept apart: the sum over ranks comes by the operation that is on trial
    wrong_rounds = max(own, int(reduce(world, wrong, op=dist.ReduceOp.MAX).sum()))
    # Bus bandwidth of an all-reduce: bytes / time · 2(n-1)/n (NVIDIA nccl-tests, doc/PERFORMANCE.md); GB = 1e9 bytes.
    bandwidth = numel * 4 * iters / time_s * 2 * (size - 1) / size / 1e9
    result = {
        "world": size,
        "nodes": world.nodes,
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


def train_smoke(world: World, args: argparse.Namespace) -> bool:
    """DDP of the small network: the loss, averaged over ranks, must fall below 0.8 of its start."""
    wrap = torch.nn.parallel.DistributedDataParallel
    losses = tiny_training(world.device, steps=args.steps, rank=world.rank, wrap=wrap)
    first, last = (reduce(world, torch.tensor(losses, device=world.device)) / world.size).tolist()
    result = {
        "world": world.size,
        "steps": args.steps,
        "loss_start": first,
        "loss_end": last,
        "improved": last < 0.8 * first,
    }
    log("TRAIN", rank=world.rank, **result)
    if world.rank == 0:
        write_json(Path(args.report_dir) / "ddp_training_result.json", result)
    return result["improved"]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ddp-tests", description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--iters", type=int, default=0, help="timed rounds; 0: twice the world size")
    parser.add_argument("--numel", type=int, default=0, help="float32 elements; 0: 1 Mi on CPUs, 16 Mi on GPUs")
    parser.add_argument("--train-smoke", action="store_true", help="also train a small network with DDP")
    parser.add_argument("--steps", type=int, default=60, help="training steps of --train-smoke")
    parser.add_argument("--timeout", type=int, default=300, help="seconds until a stuck collective fails")
    parser.add_argument("--report-dir", default="reports")
    parser.add_argument("--report-name", default="ddp_tests_result.json", help="of the all-reduce")
    tests = parser.add_argument_group("tests by name, instead of the all-reduce")
    tests.add_argument("--sweep", action="store_true", help="six collectives, many sizes, every element checked")
    tests.add_argument("--stragglers", action="store_true", help="name the ranks that compute slower or arrive later")
    tests.add_argument("--locate", action="store_true", help="find bad nodes and links by tests of changing groups")
    tests.add_argument("--correctness", action="store_true", help="DDP against one process; checkpoint and resume")
    tests.add_argument("--storage", metavar="DIR", action="append", default=[], help="test a volume; may be repeated")
    tests.add_argument("--level", choices=LEVELS[:2], default="quick", help="sizes of --sweep")
    tests.add_argument("--nic-gbps", type=float, help="GB/s of the network card of each GPU: the ceiling of --sweep")
    tests.add_argument("--expect-gbps", type=float, help="GB/s that two nodes must reach in --locate, as a yardstick")
    tests.add_argument("--inject", metavar="FAULT", default="", help="put a fault in on purpose, to see it found")
    tests.add_argument("--inject-rank", type=int, default=-1, help="the rank with the fault (default: the last)")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start it with torchrun: torchrun --standalone --nproc-per-node=2 -m gpuworker.accept.ddp_tests")
    if args.train_smoke and args.steps < 2:
        parser.error("--steps: at least 2, so that the loss of the first and of the last can be compared")
    return args


if __name__ == "__main__":
    main()
