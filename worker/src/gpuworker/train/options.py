"""Flags that both training programs have."""

from __future__ import annotations

import argparse
import os

from gpuworker.train import trackers, upload


def count(text: str) -> int:
    """A whole number from 1."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def whole(text: str) -> int:
    """A whole number from 0."""
    if (number := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return number


def command(text: str) -> list[str]:
    try:
        return upload.command_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_common(parser: argparse.ArgumentParser, epochs: int, batch: int, lr: float) -> None:
    group = parser.add_argument_group("training")
    group.add_argument("--epochs", type=count, default=epochs, metavar="N", help=f"({epochs})")
    group.add_argument("--batch", type=count, default=batch, metavar="N", help=f"samples of a rank and pass ({batch})")
    group.add_argument(
        "--grad-accum", dest="accumulate", type=count, default=1, metavar="N", help="passes of a step (1)"
    )
    group.add_argument("--lr", type=float, default=lr, metavar="X", help=f"highest learning rate ({lr:g})")
    group.add_argument("--wd", type=float, default=0.01, metavar="X", help="weight decay of matrices (0.01)")
    group.add_argument(
        "--warmup", type=float, default=0.03, metavar="X", help="steps, or a share of the run below 1 (0.03)"
    )
    group.add_argument(
        "--schedule", choices=["cosine", "constant"], default="cosine", help="after the warm-up (cosine)"
    )
    group.add_argument("--clip", type=float, default=1.0, metavar="X", help="highest norm of the gradient; 0: any (1)")
    group.add_argument("--seed", type=whole, default=42, metavar="N", help="(42)")
    group = parser.add_argument_group("speed and memory")
    group.add_argument("--device", choices=["cpu", "cuda"], default="", help="default: cuda where there is one")
    group.add_argument("--bf16", action="store_true", help="compute in bfloat16; weights stay in float32")
    group.add_argument("--compile", action="store_true", help="torch.compile; needs a C compiler in the image")
    group.add_argument("--activation-checkpointing", action="store_true", help="compute twice, keep less in memory")
    group.add_argument(
        "--find-unused-parameters", action="store_true", help="for models that leave out parameters in some steps"
    )
    group = parser.add_argument_group("output")
    group.add_argument("--output", default="", metavar="DIR", help="checkpoints and report go to DIR/RUN; empty: none")
    group.add_argument(
        "--run", default=os.environ.get("RUN_ID") or "run", metavar="NAME", help="default: RUN_ID, or run"
    )
    group.add_argument("--report-json", default="", metavar="FILE", help="default: report.json in DIR/RUN")
    group.add_argument(
        "--resume",
        choices=["auto", "never"],
        default="auto",
        help="from the newest checkpoint of the run; never: set aside what an earlier run has left (auto)",
    )
    group.add_argument(
        "--save-every", type=whole, default=0, metavar="STEPS", help="besides the end of each epoch; 0: not"
    )
    group.add_argument(
        "--keep", type=count, default=2, metavar="N", help="newest checkpoints to keep, and the best (2)"
    )
    group.add_argument("--upload", type=command, metavar="JSON", help=f"run for each checkpoint: {upload.HELP}")
    group.add_argument("--upload-wait", type=float, default=60.0, metavar="SECONDS", help="for uploads at the end (60)")
    group.add_argument(
        "--log-every", type=count, default=10, metavar="STEPS", help="a line, and a point of the plot (10)"
    )
    group.add_argument(
        "--log-batches",
        choices=["all", "first-last", "none"],
        help="instead: every step, those of an epoch's ends, none",
    )
    group.add_argument(
        "--log-level", choices=["debug", "info", "warning", "error"], default="warning", help="of libraries"
    )
    trackers.add_arguments(parser)
