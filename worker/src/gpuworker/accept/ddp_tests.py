"""ddp-tests: an all-reduce and a small DDP training in a torchrun world, or checks across nodes.

  torchrun --standalone --nproc-per-node=2 -m gpuworker.accept.ddp_tests --device cpu
  torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 \\
    -m gpuworker.accept.ddp_tests
  ddp-launch -m gpuworker.accept.ddp_tests --bad-nodes --collectives

Without a check the all-reduce runs, with other data in every round and all elements checked. Exit
code 0: all passed; 3: a wrong result, or a missing one. Rank 0 writes the reports:
ddp_tests_result.json and ddp_training_result.json, or report-world.json for checks.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

from gpuworker.accept import errors
from gpuworker.accept.checks.collectives.operations import factor, operations
from gpuworker.accept.checks.collectives.sweep import trial
from gpuworker.accept.distributed.rank_context import RankContext, from_torchrun
from gpuworker.accept.kernels.tiny_classifier import (
    BATCH,
    EPOCH_STEPS,
    tiny_training,
)
from gpuworker.accept.publish import log_check, new_report, publish, write_json
from gpuworker.judgement import registry
from gpuworker.judgement.check_spec import LEVELS, Plan, Spec
from gpuworker.judgement.judge import judge
from gpuworker.judgement.report import (
    PASS,
    WARN,
    WORLD,
    WORLD_REPORT,
    Evidence,
    Report,
    Requested,
    World,
    WorldNode,
    not_done,
)
from gpuworker.runtime import process_group
from gpuworker.runtime.command_line import escape_output, first_line
from gpuworker.runtime.log import log


def main() -> None:
    escape_output()
    args = parse_args()
    checks = [check for name, check in registry.world_checks().items() if getattr(args, name)]
    # NCCL must raise an error when a collective times out, so that the search can go on
    if args.bad_nodes:
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    context = from_torchrun(args.device, args.timeout, args.inject, args.inject_rank)
    ok = (
        run_checks(context, checks, plan_of(args), Path(args.report_dir))
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


def run_checks(context: RankContext, checks: list[Spec], plan: Plan, folder: Path) -> bool:
    """Run the checks in their order. True on all ranks: each of them passed, maybe with a warning.

    Rank 0 writes the report into `folder`, first with every check INCOMPLETE: a rank that dies ends
    the whole world.
    """
    start, path = time.monotonic(), folder / WORLD_REPORT
    report = _unfinished_report(context, checks, plan)
    verdicts = set()
    try:
        for index, registered in enumerate(checks):
            began = time.monotonic()
            evidence = measured(registered, context, plan)
            if report:
                evidence.name, evidence.duration_s = registered.name, time.monotonic() - began
                report.checks[index] = evidence
            verdicts.add(context.share(report and _judged(registered, report, path)))
    except Exception as error:
        if report:
            problems = [errors.problem_of(error)]
            report.checks[index] = Evidence(problems=problems, name=registered.name)
        raise
    finally:
        if report:
            report.duration_s = time.monotonic() - start
            publish(report, path)
    return verdicts <= {PASS, WARN}


def measured(check: Spec, context: RankContext, plan: Plan) -> Evidence:
    """What all ranks see, on rank 0."""
    if check.measure_world:
        return check.measure_world(context, plan)
    ranks = importlib.import_module(f"{registry.CHECKS}.{check.ranks}")
    results = context.gather(check.ranks, ranks.run(context, plan))
    return ranks.evidence(results, plan, context.nodes) if results else Evidence()


def _judged(registered: Spec, report: Report, path: Path) -> str:
    """Verdict of a check that has ended; the report is written with it."""
    judged = judge(report)
    (check,) = [each for each in judged.checks if each.name == registered.name]
    log_check(registered.tag, check)
    with contextlib.suppress(OSError):  # `publish` reports it
        write_json(path, dataclasses.asdict(report) | judged.to_dict())
    return check.verdict


def _unfinished_report(context: RankContext, checks: list[Spec], plan: Plan) -> Report | None:
    """On rank 0 a report with the ranks of each node; None on the other ranks."""
    ranks = context.gather("rank", {"node": context.node, "gpu": context.gpu_model})
    if not ranks:
        return None
    nodes: dict[str, list[int]] = {}
    for rank, facts in enumerate(ranks):
        nodes.setdefault(facts["node"], []).append(rank)
    gpus = [facts["gpu"] for facts in ranks if facts["gpu"]]
    words = "a rank ended before this check was done"
    names = tuple(check.name for check in checks)
    return new_report(
        os.environ.get("RUN_ID", ""),
        Requested(
            plan.device,
            len(ranks) if plan.device == "cuda" else 0,
            plan.level,
            names,
            inject=plan.inject,
        ),
        checks=[not_done(name, "not-run", words) for name in names],
        facts={"torch": torch.__version__, "cuda": torch.version.cuda, "gpu_models": gpus},
        scope=WORLD,
        world=World(len(ranks), [WorldNode(*node) for node in nodes.items()]),
    )


def all_reduce(context: RankContext, args: argparse.Namespace) -> bool:
    rounds = args.iters or 2 * context.size
    numel = args.numel or (1 << 20 if args.device == "cpu" else 1 << 24)
    operation = next(each for each in operations(context, numel) if each.name == "all_reduce")
    # the first round warms up and is checked, not timed
    times, errors, _ = trial(context, operation, rounds, warm_up=1)

    def result(found: list[list]) -> dict:
        """The slowest rank and the wrong rounds of every rank count."""
        time_s, wrong = map(max, zip(*found, strict=True))
        # GB = 1e9 bytes
        rate = operation.bytes * rounds / time_s * factor("all_reduce", context.size) / 1e9
        return {
            "world": context.size, "nodes": context.nodes, "iters": rounds,
            "numel": operation.bytes // 4, "time": time_s, "busbw_gbps": rate,
            "wrong_iters": wrong, "ok": wrong == 0,
        }  # fmt: skip

    return shared(context, "DDP", args.report_name, [sum(times), len(errors)], result, args)["ok"]


def train_smoke(context: RankContext, args: argparse.Namespace) -> bool:
    """DDP of the small network: the loss, averaged over ranks, must fall below 0.8 of its start."""
    wrap = torch.nn.parallel.DistributedDataParallel
    steps = args.epochs * EPOCH_STEPS
    losses = tiny_training(context.device, steps=steps, rank=context.rank, wrap=wrap)

    def result(found: list[list]) -> dict:
        first, last = (sum(each) / context.size for each in zip(*found, strict=True))
        return {
            "world": context.size,
            "epochs": args.epochs,
            "batch_size": BATCH,
            "steps": steps,
            "loss_start": first,
            "loss_end": last,
            "improved": last < 0.8 * first,
        }

    return shared(context, "TRAIN", "ddp_training_result.json", losses, result, args)["improved"]


def shared(
    context: RankContext,
    tag: str,
    name: str,
    own: object,
    result: Callable[[list], dict],
    args: argparse.Namespace,
) -> dict:
    """What `result` makes of the values of all ranks, on all ranks; and as a report of rank 0."""
    values = context.gather(name, own)
    found = context.share(values and result(values))
    if values:
        write_json(Path(args.report_dir) / name, found)
    log(tag, rank=context.rank, **found)
    return found


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


def parse_args() -> argparse.Namespace:
    checks = registry.world_checks().values()
    parser = argparse.ArgumentParser(prog="ddp-tests", description=first_line(__doc__))
    default = "cuda" if torch.cuda.is_available() else "cpu"
    add = parser.add_argument
    add("--device", choices=["cpu", "cuda"], default=default)
    add("--iters", type=int, default=0, help="timed rounds; 0: twice the world size")
    add("--numel", type=int, default=0, help="float32 elements; 0: 1 Mi on CPUs, 16 Mi on GPUs")
    add("--train-smoke", action="store_true", help="also train a small network with DDP")
    add("--epochs", type=int, default=2, help=f"of {EPOCH_STEPS} steps")
    add("--batch-size", type=int, choices=[BATCH], help="the only one")
    add("--timeout", type=int, default=300, help="seconds until a stuck collective fails")
    add("--report-dir", default="reports")
    add("--report-name", default="ddp_tests_result.json", help="report of the all-reduce")
    for option in ("--quick", "--verbose"):
        add(option, action="store_true", help="accepted, without an effect")
    group = parser.add_argument_group("checks across nodes, instead of the all-reduce")
    add = group.add_argument
    for check in checks:
        folders = {"metavar": "DIR", "action": "append", "default": []}
        takes = folders if check.takes_volumes else {"action": "store_true"}
        add(f"--{check.name.replace('_', '-')}", help=check.across_nodes, **takes)
    add("--level", choices=LEVELS[:2], default="quick", help="sizes of --collectives")
    card = "GB/s of the network card of each GPU: ceiling of --collectives"
    add("--nic-gbps", type=float, help=card)
    add("--expect-gbps", type=float, help="GB/s that two nodes must reach in --bad-nodes")
    faults = sorted({fault for check in checks for fault in check.faults})
    add("--inject", choices=["", *faults], metavar="FAULT", default="", help=", ".join(faults))
    add("--inject-rank", type=int, default=-1, help="rank with the fault (default: the last)")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        command = "torchrun --standalone --nproc-per-node=2 -m gpuworker.accept.ddp_tests"
        parser.error(f"start it with torchrun: {command}")
    return args


if __name__ == "__main__":
    main()
