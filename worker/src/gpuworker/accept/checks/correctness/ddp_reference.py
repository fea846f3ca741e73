"""Comparison of DDP with one process: gradients, parameters, checkpoints.

All values are float64: the order of additions causes differences of 1e-15, and real faults are far
larger.
"""

from __future__ import annotations

import copy
import math
import os
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpuworker.accept.checks.correctness import TOLERANCE
from gpuworker.accept.distributed.rank_context import RankContext
from gpuworker.accept.kernels.fingerprint import digest
from gpuworker.judgement.check_spec import Plan
from gpuworker.judgement.majority import majority
from gpuworker.judgement.report import Evidence

NAMED = 8  # ranks of a finding
SAMPLES, FEATURES, CLASSES = 16, 32, 8  # samples per rank and step
RATE = 1e-2


def run(context: RankContext, plan: Plan) -> dict:
    """Compare with a single process, train, save, resume."""
    # Otherwise cuBLAS may vary the order of additions.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    plan.scratch.mkdir(parents=True, exist_ok=True)
    steps = {"quick": 5, "full": 50, "burn-in": 500}[plan.level]
    try:
        return _run(context, plan.scratch / f"rank-{context.rank}.pt", steps)
    finally:
        torch.use_deterministic_algorithms(False)


def _run(context: RankContext, path: Path, steps: int) -> dict:
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Linear(FEATURES, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, CLASSES)
    )
    plain = plain.double().to(context.device)
    ddp = _wrapped(context, copy.deepcopy(plain))
    if context.injected("flipped-gradient"):
        next(ddp.parameters()).register_hook(lambda gradient: _flip(gradient, 54))
    if context.injected("nan-gradient"):
        next(ddp.parameters()).register_hook(lambda gradient: gradient / 0)
    everything = _batch(context, 0)
    mine = [each[_mine(context)] for each in everything]
    with ddp.no_sync():
        own_error = _error(_gradients(ddp, *mine), _gradients(plain, *mine))
    reduced_error = _error(_gradients(ddp, *mine), _gradients(plain, *everything))
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=RATE)
    _train(context, ddp, optimizer, 0, steps)
    with path.open("wb") as file:
        torch.save({"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    trained = _hash(ddp)
    # DDP reorders its buckets after the first step, and with them the additions. A resumed run
    # starts with a new DDP, so the continued run gets a new one, too.
    ddp = _wrapped(context, ddp.module)
    _train(context, ddp, optimizer, steps, 2 * steps)
    straight = _hash(ddp)
    data = torch.load(path, map_location=context.device)
    path.unlink()
    if context.injected("damaged-checkpoint"):
        _flip(data["model"]["0.weight"], 40)
    plain.load_state_dict(data["model"])
    loaded = _hash(plain)  # now: DDP takes the parameters of rank 0
    ddp = _wrapped(context, plain)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=RATE)
    optimizer.load_state_dict(data["optimizer"])
    _train(context, ddp, optimizer, steps, 2 * steps)
    return {
        "label": context.label,
        "own_error": own_error,
        "reduced_error": reduced_error,
        "trained": trained,
        "straight": straight,
        "loaded": loaded,
        "resumed": _hash(ddp),
    }


def _wrapped(context: RankContext, model: nn.Module) -> nn.Module:
    gpu = context.device.type == "cuda"
    return DistributedDataParallel(model, device_ids=[context.device] if gpu else None)


def _mine(context: RankContext) -> slice:
    return slice(context.rank * SAMPLES, (context.rank + 1) * SAMPLES)


def _batch(context: RankContext, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The global batch of a step, the same on every rank."""
    generator = torch.Generator().manual_seed(1000 + step)
    inputs = torch.randn(context.size * SAMPLES, FEATURES, generator=generator, dtype=torch.float64)
    labels = torch.randint(CLASSES, (context.size * SAMPLES,), generator=generator)
    return inputs.to(context.device), labels.to(context.device)


def _gradients(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def _error(found: list[torch.Tensor], reference: list[torch.Tensor]) -> float:
    """The largest difference as a share of the largest reference gradient; infinite if a
    gradient is not finite.
    """
    largest = max(float(gradient.abs().max()) for gradient in reference)
    difference = float(
        torch.stack([(a - b).abs().max() for a, b in zip(found, reference, strict=True)]).max()
    )
    return difference / largest if math.isfinite(difference) else math.inf


def _train(
    context: RankContext, model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int
) -> None:
    for step in range(first, last):
        context.enter(f"training step {step}")
        inputs, labels = (each[_mine(context)] for each in _batch(context, step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        if context.injected("diverged-parameter") and step == last - 1:
            with torch.no_grad():
                _flip(next(model.parameters()), 0)


def _hash(model: nn.Module) -> str:
    return digest([parameter.detach() for parameter in model.parameters()])


def _flip(tensor: torch.Tensor, bit: int) -> torch.Tensor:
    """Flip a bit of the first element, in place."""
    tensor.detach().view(torch.int64).view(-1)[0] ^= 1 << bit
    return tensor


def evidence(results: list[dict], plan: Plan, nodes: int) -> Evidence:
    found = Evidence(facts={"ranks": len(results)})

    def fail(kind: str, ranks: list[int], words: str) -> None:
        shown = ", ".join(results[rank]["label"] for rank in ranks[:NAMED])
        more = " and more" * (len(ranks) > NAMED)
        parts = (f"rank {rank}" for rank in ranks[:NAMED])
        found.fail(kind, f"{shown}{more}: {words}", *parts, measure="gradient_error")

    errors = [result[kind] for result in results for kind in ("own_error", "reduced_error")]
    if all(map(math.isfinite, errors)):  # else the failure below has it
        found.add_number("gradient_error", max(errors), "x")
    for rank, result in enumerate(results):
        if not result["own_error"] <= TOLERANCE:  # also for NaN
            words = "its own gradient, before any communication, differs from the reference by"
            words = f"{words} {result['own_error']:.2g} of the largest gradient"
            fail("own-gradient", [rank], words)
    if bad := [rank for rank, r in enumerate(results) if not r["reduced_error"] <= TOLERANCE]:
        error = f"{results[bad[0]]['reduced_error']:.2g} of the largest gradient"
        words = f"the averaged gradient differs from that of one process by {error}"
        fail("shared-gradient", bad, words)
    _, agree, odd = majority({rank: result["trained"] for rank, result in enumerate(results)})
    if odd:
        other = "those of all others" if agree else "each other, with no majority"
        fail("diverged", odd, f"parameters differ after training from {other}")
    faults = len(found.problems)
    for rank, result in enumerate(results):
        if result["loaded"] != result["trained"]:
            words = "the checkpoint that it read is not the one that it wrote"
            fail("volume-bytes", [rank], words)
        elif result["resumed"] != result["straight"] and not faults:  # else it is a consequence
            words = "training resumed from the checkpoint ends with other parameters"
            fail("diverged", [rank], words)
    return found
