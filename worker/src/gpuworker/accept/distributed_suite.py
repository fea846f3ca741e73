"""The world's tests by name, as ddp-tests runs them across nodes: measure on every rank, judge on rank 0, tell all."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import torch

from gpuworker.accept.bad_nodes import search
from gpuworker.accept.checks import collectives as node_collectives
from gpuworker.accept.checks import correctness as node_correctness
from gpuworker.accept.checks import storage as node_storage
from gpuworker.accept.checks import stragglers as node_stragglers
from gpuworker.accept.distributed import collectives, correctness, storage, stragglers
from gpuworker.accept.distributed.rank_context import World
from gpuworker.accept.limits import Limits
from gpuworker.accept.registry import Evidence, Measure, Plan, Spec
from gpuworker.accept.report import PASS, WARN, write_json
from gpuworker.accept.verdict import judge
from gpuworker.runtime.log import log

LOCATE = Spec(
    tag="DDP",
    seconds={"full": 120},
    measures={"pair_bandwidth": Measure("GB/s", "slowest exchange within the better groups", each="node")},
)
STORAGE_MIB = {"cuda": 1024, "cpu": 8}


def run(world: World, args: argparse.Namespace) -> bool:
    """Every test that was asked for, one after the other; whether none of them failed."""
    return all([_judged(world, args, name, test) for name, test in TESTS.items() if getattr(args, name)])


def _judged(world: World, args: argparse.Namespace, name: str, test: Callable) -> bool:
    spec, evidence = test(world, args)
    if world.rank == 0:
        models = (torch.cuda.get_device_name(world.device),) if world.device.type == "cuda" else ()
        check = judge(name, spec, evidence, Limits(models), Plan(world.device.type, 0))
        values = {f"{m.name}{'_' if m.device else ''}{m.device}": f"{m.value:.4g} {m.unit}" for m in check.measurements}
        log(spec.tag, test=name, verdict=check.verdict, **values, **({"reason": check.reason} if check.reason else {}))
        write_json(Path(args.report_dir) / f"ddp_{name}_result.json", dataclasses.asdict(check))
        world.store.set(f"verdict/{name}", check.verdict)
    world.store.wait([f"verdict/{name}"])
    return world.store.get(f"verdict/{name}").decode() in (PASS, WARN)


def _gathered(world: World, name: str, result: dict) -> list[dict]:
    """The results of all ranks, on rank 0."""
    world.post(f"result/{name}", result)
    return world.collect(f"result/{name}") if world.rank == 0 else []


def _sweep(world: World, args: argparse.Namespace) -> tuple[Spec, Evidence]:
    plan = Plan(world.device.type, 0, args.level)
    rounds = {"rounds": 5, "warm_up": 2} if world.device.type == "cpu" else {}
    results = _gathered(world, "sweep", collectives.run(world, node_collectives.sizes(plan), **rounds))
    spec = node_collectives.SPEC
    if world.nodes > 1:  # the fabric is the limit, not NVLink
        measures = {
            name: dataclasses.replace(measure, limit=measure.limit and "busbw_fabric")
            for name, measure in spec.measures.items()
        }
        spec = dataclasses.replace(spec, measures=measures)
    return spec, collectives.evidence(results, world.nodes, args.nic_gbps) if results else Evidence()


def _stragglers(world: World, args: argparse.Namespace) -> tuple[Spec, Evidence]:
    results = _gathered(world, "stragglers", stragglers.run(world))
    return node_stragglers.SPEC, stragglers.evidence(results) if results else Evidence()


def _correctness(world: World, args: argparse.Namespace) -> tuple[Spec, Evidence]:
    folder = Path(args.report_dir)
    folder.mkdir(parents=True, exist_ok=True)
    results = _gathered(world, "correctness", correctness.run(world, str(folder)))
    return node_correctness.SPEC, correctness.evidence(results) if results else Evidence()


def _storage(world: World, args: argparse.Namespace) -> tuple[Spec, Evidence]:
    volumes = {Path(path).name or "root": path for path in args.storage}
    mib = STORAGE_MIB[world.device.type]
    results = _gathered(world, "storage", storage.run(world, volumes, mib))
    return node_storage.SPEC, storage.evidence(results, mib) if results else Evidence()


def _locate(world: World, args: argparse.Namespace) -> tuple[Spec, Evidence]:
    result = search.run(world, args.timeout, args.expect_gbps)
    return LOCATE, search.evidence(result) if result else Evidence()


TESTS: dict[str, Callable[[World, argparse.Namespace], tuple[Spec, Evidence]]] = {
    "locate": _locate,  # first: what comes after it needs a world that works
    "stragglers": _stragglers,
    "sweep": _sweep,
    "correctness": _correctness,
    "storage": _storage,
}


def prepare(args: argparse.Namespace) -> None:
    """With NCCL a collective that times out must raise and leave the process alive, so that the search can go on."""
    if args.locate:
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
