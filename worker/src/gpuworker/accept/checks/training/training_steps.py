"""Training on every GPU of the node: loss, time of transformer steps, and cost of communication.

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
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpuworker.accept.distributed.rank_context import RankContext
from gpuworker.accept.kernels.tiny_classifier import tiny_training
from gpuworker.accept.limits import Limits
from gpuworker.judgement.report import Evidence, Measurement
from gpuworker.runtime.process_group import keep_alive

MIN_COMPUTE_RATIO = 4  # step time over all-reduce time; below it scaling shows only the network


@dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    heads: int
    length: int
    batch: int  # sequences of each rank
    words: int

    @property
    def tokens(self) -> int:
        return self.batch * self.length


SHAPES = {"cuda": Shape(8, 2048, 16, 2048, 4, 32000), "cpu": Shape(2, 64, 4, 64, 4, 256)}


class Transformer(nn.Module):
    """Decoder of `layers` blocks before a linear head; tokens of shape (batch, length) give
    (batch, length, words).
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.words, shape.width)
        self.blocks = nn.ModuleList(_Block(shape) for _ in range(shape.layers))
        self.head = nn.Linear(shape.width, shape.words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class _Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, width = shape.heads, shape.width
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.before(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(nn.functional.gelu(self.wide(self.between(x))))


def flop_per_token(model: Transformer, shape: Shape) -> int:
    parameters = sum(p.numel() for p in model.parameters()) - model.embedding.weight.numel()
    return 6 * parameters + 12 * shape.layers * shape.width * shape.length


def run(context: RankContext, steps: int) -> dict:
    """The small training on this rank alone, then transformer steps without and with DDP."""
    first, last = tiny_training(context.device, poison=context.injected("nan-loss"))
    shape = SHAPES[context.device.type]
    torch.manual_seed(0)
    model = Transformer(shape).to(context.device)
    flop = flop_per_token(model, shape)
    numel = sum(parameter.numel() for parameter in model.parameters())
    # on all ranks: a GPU alone would be faster than those of a full node
    alone = _steps(context, model, shape, steps)
    context.barrier("training/alone")
    together, all_reduce_s = alone, 0.0
    if context.size > 1:
        gradients = keep_alive(torch.zeros(numel, device=context.device))
        dist.all_reduce(gradients)
        context.synchronize()
        start = time.perf_counter()
        dist.all_reduce(gradients)
        context.synchronize()
        all_reduce_s = time.perf_counter() - start
        del gradients
        devices = [context.device] if context.device.type == "cuda" else None
        together = _steps(context, DistributedDataParallel(model, device_ids=devices), shape, steps)
    return {
        "label": context.label,
        "device": str(context.device),
        "model": torch.cuda.get_device_name(context.device)
        if context.device.type == "cuda"
        else "",
        "losses": None if not math.isfinite(first + last) else [first, last],
        "loss_text": f"{first:.4g} to {last:.4g}",
        "tokens": shape.tokens,
        "parameters": numel,
        "flop_per_token": flop,
        "alone_s": alone,
        "together_s": together,
        "all_reduce_s": all_reduce_s,
    }


def _steps(
    context: RankContext, model: nn.Module, shape: Shape, steps: int, warm_up: int = 3
) -> list[float]:
    """Seconds of each step."""
    cuda = context.device.type == "cuda"
    dtype = torch.float16 if cuda and not torch.cuda.is_bf16_supported() else torch.bfloat16
    generator = torch.Generator().manual_seed(context.rank)
    tokens = torch.randint(shape.words, (shape.batch, shape.length + 1), generator=generator).to(
        context.device
    )
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
        if step >= warm_up:
            times.append(time.perf_counter() - start)
    return times


def evidence(results: list[dict]) -> Evidence:
    """Loss, tokens/s and MFU of every device, and the weak scaling."""
    first = results[0]
    found = Evidence(facts={"ranks": len(results), "parameters": first["parameters"]})
    # ranks of a rehearsal share one device
    for result in results if first["model"] else results[:1]:
        if result["losses"]:
            drop = result["losses"][0] / max(result["losses"][1], 1e-12)
            found.measurements.append(Measurement("loss_drop", drop, "x", result["device"]))
    for rank, result in enumerate(results):
        if not result["losses"]:
            found.fail(
                "loss", f"{result['label']}: loss went from {result['loss_text']}", f"rank {rank}"
            )
            found.inapplicable["loss_drop"] = "a loss is not finite"
    slowest = statistics.median(
        max(times) for times in zip(*(r["together_s"] for r in results), strict=True)
    )
    for result in results if first["model"] else results[:1]:
        rate = result["tokens"] / slowest
        found.measurements.append(Measurement("tokens_per_s", rate, "tokens/s", result["device"]))
        device = result["device"].rpartition(":")[2]
        peak = (
            Limits((result["model"],)).figures("gemm_bf16").get("specification")
            if result["model"]
            else None
        )
        if peak:
            found.measurements.append(
                Measurement(
                    "mfu", rate * result["flop_per_token"] / peak / 1e12, "ratio", f"cuda:{device}"
                )
            )
        else:
            found.inapplicable["mfu"] = f"no peak is known for {result['model'] or 'a CPU'}"
    found.samples["step_s"] = [
        max(times) for times in zip(*(r["together_s"] for r in results), strict=True)
    ][:200]
    alone = statistics.median(
        max(times) for times in zip(*(r["alone_s"] for r in results), strict=True)
    )
    communication_s = max(result["all_reduce_s"] for result in results)
    if len(results) == 1:
        found.inapplicable["weak_scaling"] = "one device"
    elif not first["model"]:
        found.inapplicable["weak_scaling"] = "ranks of a rehearsal share processors"
    elif alone < MIN_COMPUTE_RATIO * communication_s:
        found.inapplicable["weak_scaling"] = (
            f"a step computes {alone * 1e3:.3g} ms and its all-reduce takes {communication_s * 1e3:.3g} ms: compute "
            "does not dominate"
        )
    else:
        found.measurements.append(Measurement("weak_scaling", alone / slowest, "ratio"))
    found.facts["efficiency"] = alone / slowest
    return found
