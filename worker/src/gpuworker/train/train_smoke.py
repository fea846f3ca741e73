"""train.py: trains a small classifier on made-up data, on every rank of a world, and says whether it has learned.

  torchrun --nnodes=2 --nproc-per-node=8 … /app/src/train.py --epochs 2 --batch 256 --samples 4096

It takes the same way as train_framework.py, so a world that it trains on works. Exit code 0: learned; 3: not.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from gpuworker.runtime.process_exit import leave
from gpuworker.train import options
from gpuworker.train.distributed import World
from gpuworker.train.program import run
from gpuworker.train.schedule import mix


class Points:
    """Points around a centre for each class. A label of -1 is none."""

    def __init__(self, centres: torch.Tensor, count: int, seed: int):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(len(centres), (count,), generator=generator)
        self.inputs = centres[self.labels] + 3 * torch.randn(count, centres.shape[1], generator=generator)
        self.learned = self.sizes = torch.ones(count, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[rows], torch.where(rows < 0, -1, self.labels[rows])


class Classifier(nn.Module):
    def __init__(self, features: int, classes: int):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 2 * features), nn.ReLU(), nn.Linear(2 * features, classes))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.layers(inputs).float(), labels, ignore_index=-1, reduction="sum")


class Classification:
    name = "smoke"

    def __init__(self, args: argparse.Namespace):
        self.args = args
        centres = torch.randn(args.classes, args.features, generator=torch.Generator().manual_seed(args.seed))
        self.train = Points(centres, args.samples, mix(args.seed, 1))
        self.validation = Points(centres, max(1, args.samples // 8), mix(args.seed, 2))
        self.identity = {name: getattr(args, name) for name in ("samples", "features", "classes")}

    def build(self, world: World, checkpoint: Path | None) -> nn.Module:
        module = Classifier(self.args.features, self.args.classes)
        if checkpoint:
            module.load_state_dict(torch.load(checkpoint / "model.pt", weights_only=True))
        return module.to(world.device)

    def save(self, module: nn.Module, folder: Path) -> None:
        torch.save(module.state_dict(), folder / "model.pt")

    def flops(self, module: nn.Module) -> float:
        return 6.0 * sum(each.numel() for each in module.parameters())


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="train.py", description=__doc__.splitlines()[0])
    made.add_argument("--samples", type=options.count, default=4096, metavar="N", help="of the training set (4096)")
    made.add_argument("--features", type=options.count, default=128, metavar="N", help="of each sample (128)")
    made.add_argument("--classes", type=options.count, default=4, metavar="N", help="(4)")
    options.add_common(made, epochs=2, batch=256, lr=3e-3)
    made.set_defaults(warmup=0.0, schedule="constant", wd=0.0, log_every=1)
    return made


def main(argv: list[str] | None = None) -> int:
    return run(parser(), argv, lambda args, world: Classification(args), verdict)


def verdict(report: dict) -> tuple[int, dict]:
    """Learned, if the loss of the last interval is below 0.7 of the first one's."""
    losses = [entry["loss"] for entry in report["history"]]
    improved = len(losses) > 1 and losses[-1] < 0.7 * losses[0]
    facts = {"loss_start": losses[0], "loss_end": losses[-1]} if losses else {}
    return (0 if improved else 3), {**facts, "improved": improved}


if __name__ == "__main__":
    leave(main())
