"""What the checks and the training are compared with: products timed by torch, and a minimal training loop.

gemm    torch.utils.benchmark on torch.mm: the same matrices all the time, in a warm cache
gpt     GPT-2 small's shape in plain torch, with the usual loop: autocast, fused AdamW, clipped gradients
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils import benchmark

VOCABULARY = 257  # bytes and the end of text, as with --from-scratch
FORMATS = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def gemm(device: torch.device, size: int, seconds: float) -> list[dict]:
    figures = []
    for kind, dtype in FORMATS.items():
        if device.type == "cpu" and kind in ("tf32", "fp16"):
            continue
        torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")
        n = size // 2 if kind == "fp32" else size
        a, b = (torch.randn(n, n, device=device).to(dtype) for _ in "ab")
        scope = {"torch": torch, "a": a, "b": b, "out": torch.empty_like(a)}
        taken = benchmark.Timer("torch.mm(a, b, out=out)", globals=scope).blocked_autorange(
            min_run_time=seconds
        )
        rate = 2 * n**3 / taken.median / 1e12
        figures.append(
            {"name": f"gemm_{kind}", "value": rate, "unit": "TFLOP/s", "device": str(device)}
        )
    return figures


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_network = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.inputs(self.before_attention(x)).view(
            rows, length, 3, self.heads, width // self.heads
        )
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.network(self.before_network(x))


class Gpt(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, length: int):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.last = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        logits = functional.linear(self.last(self.blocks(x)), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def gpt(device: torch.device, args: argparse.Namespace) -> list[dict]:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = Gpt(*map(int, args.shape.split(",")), args.length).to(device)
    run = torch.compile(model) if args.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    gpu, taken, loss = device.type == "cuda", [], torch.zeros(())
    for _ in range(args.steps):
        started = time.perf_counter()
        stream = torch.randint(VOCABULARY, (args.batch, args.length + 1)).to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=gpu):
            loss = run(stream[:, :-1], stream[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()  # the usual loop logs it
        taken.append(time.perf_counter() - started)
    rate = args.batch * args.length / statistics.median(taken[args.steps // 2 :])
    figures = [{"name": "tokens_per_s", "value": rate, "unit": "tokens/s"}]
    if gpu:
        memory = torch.cuda.max_memory_allocated(device) / 2**30
        figures.append({"name": "peak_memory", "value": memory, "unit": "GiB"})
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("peer", choices=["gemm", "gpt"])
    add("--device", choices=["cpu", "cuda"], required=True)
    add("--folder", type=Path, required=True)
    add("--size", type=int, default=8192, help="of the matrices; float32 uses half of it")
    add("--seconds", type=float, default=2.0, help="per format")
    add("--shape", default="12,768,12", help="layers, width, heads")
    add("--length", type=int, default=1024)
    add("--batch", type=int, default=16)
    add("--steps", type=int, default=60)
    add("--compile", action="store_true")
    args = parser.parse_args()
    device = torch.device(args.device, 0) if args.device == "cuda" else torch.device("cpu")
    figures = gemm(device, args.size, args.seconds) if args.peer == "gemm" else gpt(device, args)
    (args.folder / "figures.json").write_text(json.dumps({"figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
