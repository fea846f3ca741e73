"""Training on every GPU of the node: loss, and time of transformer steps.

Model FLOP of a token = 6·N + 12·layers·width·length, N without the embedding table (Chowdhery et
al., PaLM, appendix B; causal masks are not subtracted). MFU = tokens/s of a GPU × FLOP of a token /
peak of its data sheet.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpuworker.accept.distributed.rank_context import RankContext
from gpuworker.accept.kernels.tiny_classifier import tiny_training
from gpuworker.judgement.check_spec import Plan
from gpuworker.judgement.limits import Limits
from gpuworker.judgement.report import Evidence


@dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    heads: int
    length: int
    batch: int  # sequences of each rank
    words: int


SHAPES = {"cuda": Shape(8, 2048, 16, 2048, 4, 32000), "cpu": Shape(2, 64, 4, 64, 4, 256)}


class Transformer(nn.Module):
    """Decoder of `layers` blocks before a linear head; tokens of shape (batch, length) give
    (batch, length, words).
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        block = nn.TransformerEncoderLayer(
            width, shape.heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True,
            norm_first=True,
        )  # fmt: skip
        self.embedding = nn.Embedding(shape.words, width)
        self.blocks = nn.TransformerEncoder(block, shape.layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, shape.words, bias=False)
        mask = nn.Transformer.generate_square_subsequent_mask(shape.length)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.embedding(tokens), self.mask, is_causal=True)
        return self.head(x)


def flop_per_token(model: Transformer, shape: Shape) -> int:
    parameters = sum(p.numel() for p in model.parameters()) - model.embedding.weight.numel()
    return 6 * parameters + 12 * shape.layers * shape.width * shape.length


def run(context: RankContext, plan: Plan) -> dict:
    """The small training on this rank alone, then transformer steps with DDP."""
    steps = {"quick": 10, "full": 50, "burn-in": 500}[plan.level]
    losses = tiny_training(context.device, poison=context.injected("nan-loss"))
    shape = SHAPES[context.device.type]
    torch.manual_seed(0)
    model = Transformer(shape).to(context.device)
    flop = flop_per_token(model, shape)
    wrapped: nn.Module = model
    if context.size > 1:
        devices = [context.device] if context.device.type == "cuda" else None
        wrapped = DistributedDataParallel(model, device_ids=devices)
    times = _steps(context, wrapped, shape, steps)
    return {
        "label": context.label, "device": str(context.device), "model": context.gpu_model,
        "losses": losses, "tokens": shape.batch * shape.length, "flop_per_token": flop,
        "steps_s": times,
    }  # fmt: skip


def _steps(
    context: RankContext, model: nn.Module, shape: Shape, steps: int, warm_up: int = 3
) -> list[float]:
    """Seconds of each step."""
    cuda = context.device.type == "cuda"
    dtype = torch.float16 if cuda and not torch.cuda.is_bf16_supported() else torch.bfloat16
    generator = torch.Generator().manual_seed(context.rank)
    tokens = torch.randint(shape.words, (shape.batch, shape.length + 1), generator=generator)
    tokens = tokens.to(context.device)
    times = []
    for step in range(warm_up + steps):
        context.synchronize()
        context.enter(f"training step {step}")
        start = time.perf_counter()
        with torch.autocast(context.device.type, dtype, enabled=cuda):
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        # plain gradient descent: an optimizer with state would test the memory
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 1e-4 * parameter.grad
                parameter.grad = None
        context.synchronize()
        times.append(time.perf_counter() - start)
    return times[warm_up:]


def evidence(results: list[dict], plan: Plan, nodes: int) -> Evidence:
    """Loss, tokens/s and MFU of every device."""
    gpus = bool(results[0]["model"])
    slowest = [max(times) for times in zip(*(each["steps_s"] for each in results), strict=True)]
    step_s = statistics.median(slowest)
    found = Evidence(facts={"ranks": len(results)})
    finite = all(math.isfinite(sum(result["losses"])) for result in results)
    for rank, result in enumerate(results):
        start, end = result["losses"]
        if not math.isfinite(start + end):
            words = f"{result['label']}: loss went from {start:.4g} to {end:.4g}"
            found.fail("loss", words, f"rank {rank}", measure="loss_drop")
        if rank and not gpus:
            continue  # ranks of a rehearsal share one device
        device, rate = result["device"], result["tokens"] / step_s
        if finite:
            found.add_number("loss_drop", start / max(end, 1e-12), "x", device)
        found.add_number("tokens_per_s", rate, "tokens/s", device)
        peak = Limits((result["model"],)).figures("gemm_bf16").get("specification")
        if peak:
            found.add_number("mfu", rate * result["flop_per_token"] / peak / 1e12, "ratio", device)
        else:
            found.inapplicable["mfu"] = f"no peak is known for {result['model'] or 'a CPU'}"
    return found
