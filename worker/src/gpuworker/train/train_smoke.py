"""Smoke test of distributed training (train.py): trains a small classifier on generated data and checks that it learns.

  torchrun --nnodes=2 --nproc-per-node=8 … /app/src/train.py --epochs 2 --batch 256 --samples 4096

It runs the same loop as train_framework.py. Exit code 0: the loss fell; 3: it did not.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from gpuworker.runtime import toy_problem
from gpuworker.runtime.command_line import escape_output, first_line
from gpuworker.runtime.option_types import positive_int
from gpuworker.runtime.process_group import exit_now
from gpuworker.train import options
from gpuworker.train.distributed import DistributedContext
from gpuworker.train.parser import Parser
from gpuworker.train.program import run
from gpuworker.train.schedule import derive_seed

NOT_LEARNED = 3  # exit code


class ClusteredPoints:
    """Random points around one center per class. A label of -1 is padding."""

    def __init__(self, centers: torch.Tensor, count: int, seed: int):
        generator = torch.Generator().manual_seed(seed)
        self.inputs, self.labels = toy_problem.sample_points(centers, count, generator)
        self.label_counts = self.token_counts = torch.ones(count, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[rows], torch.where(rows < 0, -1, self.labels[rows])


class Classifier(nn.Module):
    def __init__(self, features: int, classes: int):
        super().__init__()
        self.layers = toy_problem.make_network(features, classes)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.layers(inputs).float(), labels, ignore_index=-1, reduction="sum")


class ClassifierSpec:
    """TrainSpec of train.py."""

    name = "smoke"
    same_shape = True

    def __init__(self, args: argparse.Namespace):
        self.args = args
        centers = torch.randn(args.classes, args.features, generator=torch.Generator().manual_seed(args.seed))
        self.train = ClusteredPoints(centers, args.samples, derive_seed(args.seed, 1))
        self.validation = ClusteredPoints(centers, max(1, args.samples // 8), derive_seed(args.seed, 2))
        self.settings: dict = {}
        self.identity = {name: getattr(args, name) for name in ("samples", "features", "classes")}

    def build(
        self, context: DistributedContext, checkpoint: Path | None, device: torch.device | None = None
    ) -> nn.Module:
        module = Classifier(self.args.features, self.args.classes)
        if checkpoint:
            module.load_state_dict(torch.load(checkpoint / "model.pt", weights_only=True))
        return module.to(device or context.device)

    def build_empty(self) -> nn.Module:
        with torch.device("meta"):
            return Classifier(self.args.features, self.args.classes)

    def initialize(self, module: nn.Module) -> None:
        for each in module.modules():
            if isinstance(each, nn.Linear):
                each.reset_parameters()

    def save_description(self, module: nn.Module, folder: Path) -> None:
        """Nothing: the options describe the module."""

    def save(self, module: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
        torch.save(weights, folder / "model.pt")

    def flops_per_token(self, module: nn.Module) -> float:
        return 6.0 * sum(each.numel() for each in module.parameters())


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="train.py", description=first_line(__doc__))
    parser.add_argument("--samples", type=positive_int, default=4096, metavar="N", help="training set (default: 4096)")
    parser.add_argument(
        "--features", type=positive_int, default=toy_problem.FEATURES, metavar="N", help="per sample (default: 128)"
    )
    parser.add_argument("--classes", type=positive_int, default=toy_problem.CLASSES, metavar="N", help="(default: 4)")
    options.add_common(parser, epochs=2, batch=256, lr=3e-3)
    parser.set_defaults(warmup=0.0, schedule="constant", wd=0.0, log_every=1)
    return parser


def main(argv: list[str] | None = None) -> int:
    escape_output()
    return run(make_parser(), argv, lambda args, context: ClassifierSpec(args), judge)


def judge(report: dict) -> tuple[int, dict]:
    """Exit code 0 if the loss of the last interval is below 0.7 of the first one's."""
    losses = [entry["loss"] for entry in report["history"]]
    improved = len(losses) > 1 and losses[-1] < 0.7 * losses[0]
    facts = {"loss_start": losses[0], "loss_end": losses[-1]} if losses else {}
    return (0 if improved else NOT_LEARNED), {**facts, "improved": improved}


if __name__ == "__main__":
    exit_now(main())
