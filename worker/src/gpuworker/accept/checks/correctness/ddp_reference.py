"""Comparison of DDP with one process: gradients, parameters, checkpoints.

All values are float64: the order of additions causes differences of 1e-15, and real faults are far
larger.
"""

from __future__ import annotations

import copy
import hashlib
import math
import os
from collections import Counter
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpuworker.accept.checks.correctness.tolerance import TOLERANCE
from gpuworker.accept.distributed.rank_context import RankContext
from gpuworker.judgement.report import Evidence, Measurement

SAMPLES, FEATURES, CLASSES = 16, 32, 8  # samples per rank and step


def run(context: RankContext, folder: str, steps: int = 5) -> dict:
    """Compare with a single process, train, save, resume. `folder`: for a checkpoint file per
    rank.
    """
    # Otherwise cuBLAS may vary the order of additions.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        return _run(context, folder, steps)
    finally:
        torch.use_deterministic_algorithms(False)


def _run(context: RankContext, folder: str, steps: int) -> dict:
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Linear(FEATURES, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, CLASSES)
    )
    plain = plain.double().to(context.device)
    ddp = DistributedDataParallel(copy.deepcopy(plain), device_ids=_ids(context))
    if context.injected("flipped-gradient"):
        next(ddp.parameters()).register_hook(lambda gradient: _flip(gradient, 54))
    if context.injected("nan-gradient"):
        next(ddp.parameters()).register_hook(lambda gradient: gradient / 0)
    mine = slice(context.rank * SAMPLES, (context.rank + 1) * SAMPLES)
    inputs, labels = _batch(context, 0)
    with ddp.no_sync():
        own = _gradients(ddp, inputs[mine], labels[mine])
    own_error = _error(own, _gradients(plain, inputs[mine], labels[mine]))
    reduced_error = _error(
        _gradients(ddp, inputs[mine], labels[mine]), _gradients(plain, inputs, labels)
    )
    optimizer = _optimizer(ddp)
    _train(context, ddp, optimizer, 0, steps)
    path = Path(folder) / f"rank-{context.rank}.pt"
    _save(path, ddp.module, optimizer)
    trained = _hash(ddp)
    # DDP reorders its buckets after the first step, and with them the additions. A resumed run
    # starts with a new DDP, so the continued run gets a new one, too.
    ddp = DistributedDataParallel(ddp.module, device_ids=_ids(context))
    _train(context, ddp, optimizer, steps, 2 * steps)
    straight = _hash(ddp)
    if context.injected("damaged-checkpoint"):
        data = torch.load(path)
        _flip(data["model"]["0.weight"], 40)
        torch.save(data, path)
    loaded, resumed = _resume(context, plain, path, steps)
    path.unlink()
    return {
        "label": context.label,
        "own_error": own_error,
        "reduced_error": reduced_error,
        "trained": trained,
        "straight": straight,
        "loaded": loaded,
        "resumed": resumed,
    }


def evidence(results: list[dict]) -> Evidence:
    found = Evidence(facts={"ranks": len(results), "parameters_sha256": results[0]["trained"]})
    for rank, result in enumerate(results):
        result["part"] = f"rank {rank}"
    errors = [result[kind] for result in results for kind in ("own_error", "reduced_error")]
    if all(map(math.isfinite, errors)):
        found.measurements = [Measurement("gradient_error", max(errors), "x")]
    else:  # the failure below has it; a report has no number that is not finite
        found.inapplicable["gradient_error"] = "a gradient is not finite"
    for result in results:
        if not result["own_error"] <= TOLERANCE:  # also for NaN
            words = (
                "its own gradient, before any communication, differs from the reference by "
                f"{result['own_error']:.2g} of the largest gradient"
            )
            found.fail("own-gradient", f"{result['label']}: {words}", result["part"])
    bad = [result for result in results if not result["reduced_error"] <= TOLERANCE]
    if bad:
        labels = f"{', '.join(result['label'] for result in bad[:4])}{' and more' if len(bad) > 4 else ''}"
        error = f"{bad[0]['reduced_error']:.2g} of the largest gradient"
        words = f"{labels}: the averaged gradient differs from that of one process by {error}"
        found.fail("shared-gradient", words, *(result["part"] for result in bad[:4]))
    counts = Counter(result["trained"] for result in results)
    common, votes = counts.most_common(1)[0]
    if len(counts) > 1 and votes * 2 > len(results):
        outliers = [result for result in results if result["trained"] != common]
        labels = ", ".join(result["label"] for result in outliers)
        words = f"parameters differ after training: {labels} against all others"
        found.fail("diverged", words, *(result["part"] for result in outliers))
    elif len(counts) > 1:
        all_of_them = ", ".join(
            f"{result['label']}: {result['trained'][:12]}" for result in results[:8]
        )
        words = f"parameters differ after training, with no majority: {all_of_them}"
        found.fail("diverged", words, *(result["part"] for result in results[:8]))
    faults = len(found.problems)
    for result in results:
        if result["loaded"] != result["trained"]:
            words = f"{result['label']}: the checkpoint that it read is not the one that it wrote"
            found.fail("volume-bytes", words, result["part"])
        elif (
            result["resumed"] != result["straight"] and not faults
        ):  # otherwise it is a consequence
            words = f"{result['label']}: training resumed from the checkpoint ends with other parameters"
            found.fail("diverged", words, result["part"])
    return found


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


def _ids(context: RankContext) -> list[torch.device] | None:
    return [context.device] if context.device.type == "cuda" else None


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def _train(
    context: RankContext, model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int
) -> None:
    mine = slice(context.rank * SAMPLES, (context.rank + 1) * SAMPLES)
    for step in range(first, last):
        context.enter(f"training step {step}")
        inputs, labels = _batch(context, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[mine]), labels[mine]).backward()
        optimizer.step()
        if context.injected("diverged-parameter") and step == last - 1:
            with torch.no_grad():
                _flip(next(model.parameters()), 0)


def _save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with path.open("wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())


def _resume(context: RankContext, fresh: nn.Module, path: Path, steps: int) -> tuple[str, str]:
    """Hashes of the parameters of a fresh model: as read from the checkpoint, and after training
    on.
    """
    data = torch.load(path, map_location=context.device)
    fresh.load_state_dict(data["model"])
    loaded = _hash(fresh)  # now: DDP takes the parameters of rank 0
    ddp = DistributedDataParallel(fresh, device_ids=_ids(context))
    optimizer = _optimizer(ddp)
    optimizer.load_state_dict(data["optimizer"])
    _train(context, ddp, optimizer, steps, 2 * steps)
    return loaded, _hash(ddp)


def _hash(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(
            bytes(parameter.detach().cpu().contiguous().view(torch.uint8).flatten().tolist())
        )
    return digest.hexdigest()


def _flip(tensor: torch.Tensor, bit: int) -> torch.Tensor:
    """Flip a bit of the first element, in place."""
    tensor.detach().view(torch.int64).view(-1)[0] ^= 1 << bit
    return tensor
