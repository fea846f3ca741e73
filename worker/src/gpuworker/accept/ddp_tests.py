"""ddp-tests: an all-reduce and a small DDP training across every process of a torchrun world, or checks across nodes.

  torchrun --standalone --nproc-per-node=2 -m gpuworker.accept.ddp_tests --device cpu
  torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 -m gpuworker.accept.ddp_tests
  ddp-launch -m gpuworker.accept.ddp_tests --bad-nodes --collectives

Without a check the all-reduce runs: every round fills the tensor with rank+1 again, so the right sum is
world·(world+1)/2 in every round. Exit code 0: all passed; 3: a wrong result, or a missing one. Rank 0 writes the
reports: ddp_tests_result.json and ddp_training_result.json, or report-world.json for checks.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from gpuworker.accept import registry, world_checks
from gpuworker.accept.check_spec import LEVELS, Plan, Registered
from gpuworker.accept.distributed.rank_context import RankContext, from_torchrun
from gpuworker.accept.kernels.tiny_classifier import tiny_training
from gpuworker.judgement.report import write_json
from gpuworker.runtime import process_group
from gpuworker.runtime.command_line import escape_output, first_line
from gpuworker.runtime.log import log


def main() -> None:
    escape_output()
    available = registry.world_checks()
    args = parse_args(available)
    checks = [check for check in available.values() if getattr(args, check.name)]
    # NCCL must raise an error when a collective times out, so that the search can go on
    if args.bad_nodes:
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    context = from_torchrun(args.device, args.timeout, args.inject, args.inject_rank)
    ok = (
        world_checks.run(context, checks, plan_of(args), Path(args.report_dir))
        if checks
        else all_reduce(context, args)
    )
    if args.train_smoke:
        ok = train_smoke(context, args) and ok
    # The report first: a rank that exits with 3 ends the others. Rank 0, which may hold the store,
    # is the last one.
    if context.rank == 0:
        context.store.set("written", "yes")
        context.store.wait([f"left-{rank}" for rank in range(1, context.size)] or ["written"])
    else:
        context.store.wait(["written"])
        context.store.set(f"left-{context.rank}", "yes")
    process_group.destroy()
    process_group.exit_now(0 if ok else 3)


def reduce(
    context: RankContext, tensor: torch.Tensor, op: dist.ReduceOp = dist.ReduceOp.SUM
) -> torch.Tensor:
    """All-reduce in place."""
    dist.all_reduce(process_group.keep_alive(tensor), op=op)
    return tensor


def all_reduce(context: RankContext, args: argparse.Namespace) -> bool:
    rank, size, device = context.rank, context.size, context.device
    iters = args.iters or 2 * size
    numel = args.numel or (1 << 20 if device.type == "cpu" else 1 << 24)
    tensor = torch.empty(numel, device=device)
    expected = size * (size + 1) / 2
    wrong, seconds = torch.zeros(iters + 1, device=device), 0.0
    for iteration in range(iters + 1):  # the first round warms up and is checked, not timed
        tensor.fill_(rank + 1)
        process_group.barrier(device)
        start = time.perf_counter()
        reduce(context, tensor)
        context.synchronize()
        seconds += (time.perf_counter() - start) * (iteration > 0)
        if context.injected("wrong-element"):
            tensor[-1] += 1
        wrong[iteration] = not bool((tensor == expected).all())
    # The slowest rank and the wrong rounds of every rank count, not only this one's.
    time_s = reduce(context, torch.tensor([seconds], device=device), op=dist.ReduceOp.MAX).item()
    own = int(wrong.sum())  # kept apart: the sum over ranks uses the operation under test
    wrong_rounds = max(own, int(reduce(context, wrong, op=dist.ReduceOp.MAX).sum()))
    # Bus bandwidth of an all-reduce: bytes / time · 2(n-1)/n (NVIDIA nccl-tests,
    # doc/PERFORMANCE.md); GB = 1e9 bytes.
    bandwidth = numel * 4 * iters / time_s * 2 * (size - 1) / size / 1e9
    result = {
        "world": size,
        "nodes": context.nodes,
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


def train_smoke(context: RankContext, args: argparse.Namespace) -> bool:
    """DDP of the small network: the loss, averaged over ranks, must fall below 0.8 of its start."""
    wrap = torch.nn.parallel.DistributedDataParallel
    losses = tiny_training(context.device, steps=args.steps, rank=context.rank, wrap=wrap)
    first, last = (
        reduce(context, torch.tensor(losses, device=context.device)) / context.size
    ).tolist()
    result = {
        "world": context.size,
        "steps": args.steps,
        "loss_start": first,
        "loss_end": last,
        "improved": last < 0.8 * first,
    }
    log("TRAIN", rank=context.rank, **result)
    if context.rank == 0:
        write_json(Path(args.report_dir) / "ddp_training_result.json", result)
    return result["improved"]


def plan_of(args: argparse.Namespace) -> Plan:
    return Plan(
        args.device,
        0,
        args.level,
        scratch=Path(args.report_dir),
        inject=args.inject,
        volumes={Path(path).name or "root": Path(path) for path in args.storage},
        timeout_s=args.timeout,
        nic_gbps=args.nic_gbps,
        expected_gbps=args.expect_gbps,
    )


def parse_args(checks: dict[str, Registered]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ddp-tests", description=first_line(__doc__))
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument(
        "--iters", type=int, default=0, help="timed rounds; 0: twice the world size"
    )
    parser.add_argument(
        "--numel", type=int, default=0, help="float32 elements; 0: 1 Mi on CPUs, 16 Mi on GPUs"
    )
    parser.add_argument(
        "--train-smoke", action="store_true", help="also train a small network with DDP"
    )
    parser.add_argument("--steps", type=int, default=60, help="training steps of --train-smoke")
    parser.add_argument(
        "--timeout", type=int, default=300, help="seconds until a stuck collective fails"
    )
    parser.add_argument("--report-dir", default="reports")
    parser.add_argument(
        "--report-name", default="ddp_tests_result.json", help="report of the all-reduce"
    )
    group = parser.add_argument_group("checks across nodes, instead of the all-reduce")
    for check in checks.values():
        takes = (
            {"metavar": "DIR", "action": "append", "default": []}
            if check.spec.takes_volumes
            else {}
        )
        group.add_argument(
            f"--{check.name.replace('_', '-')}",
            help=check.spec.across_nodes,
            **(takes or {"action": "store_true"}),
        )
    group.add_argument(
        "--level", choices=LEVELS[:2], default="quick", help="sizes of --collectives"
    )
    group.add_argument(
        "--nic-gbps",
        type=float,
        help="GB/s of the network card of each GPU: ceiling of --collectives",
    )
    group.add_argument(
        "--expect-gbps", type=float, help="GB/s that two nodes must reach in --bad-nodes"
    )
    faults = sorted({fault for check in checks.values() for fault in check.spec.faults})
    group.add_argument(
        "--inject", choices=["", *faults], metavar="FAULT", default="", help=", ".join(faults)
    )
    group.add_argument(
        "--inject-rank", type=int, default=-1, help="the rank with the fault (default: the last)"
    )
    args = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error(
            "start it with torchrun: torchrun --standalone --nproc-per-node=2 -m gpuworker.accept.ddp_tests"
        )
    if args.train_smoke and args.steps < 2:
        parser.error(
            "--steps: at least 2, so that the loss of the first and of the last can be compared"
        )
    return args


if __name__ == "__main__":
    main()
