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
        "model": context.gpu_model,
        "losses": [first, last] if math.isfinite(first + last) else None,
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
    together, alone = (
        [max(times) for times in zip(*(result[key] for result in results), strict=True)]
        for key in ("together_s", "alone_s")
    )
    step_s = statistics.median(together)
    for rank, result in enumerate(results):
        if not result["losses"]:
            words = f"{result['label']}: loss went from {result['loss_text']}"
            found.fail("loss", words, f"rank {rank}")
            found.inapplicable["loss_drop"] = "a loss is not finite"
    # ranks of a rehearsal share one device
    for result in results if first["model"] else results[:1]:
        device, rate = result["device"], result["tokens"] / step_s

        def add(name: str, value: float, unit: str, device: str = device) -> None:
            found.measurements.append(Measurement(name, value, unit, device))

        if result["losses"]:
            start, end = result["losses"]
            add("loss_drop", start / max(end, 1e-12), "x")
        add("tokens_per_s", rate, "tokens/s")
        peak = Limits((result["model"],)).figures("gemm_bf16").get("specification")
        if peak:
            add("mfu", rate * result["flop_per_token"] / peak / 1e12, "ratio")
        else:
            found.inapplicable["mfu"] = f"no peak is known for {result['model'] or 'a CPU'}"
    found.samples["step_s"] = together
    efficiency = statistics.median(alone) / step_s
    communication_s = max(result["all_reduce_s"] for result in results)
    if len(results) == 1:
        found.inapplicable["weak_scaling"] = "one device"
    elif not first["model"]:
        found.inapplicable["weak_scaling"] = "ranks of a rehearsal share processors"
    elif statistics.median(alone) < MIN_COMPUTE_RATIO * communication_s:
        times = f"{statistics.median(alone):.3g} s and its all-reduce takes {communication_s:.3g} s"
        found.inapplicable["weak_scaling"] = f"a step takes {times}: compute does not dominate"
    else:
        found.measurements.append(Measurement("weak_scaling", efficiency, "ratio"))
    found.facts["efficiency"] = efficiency
    return found
