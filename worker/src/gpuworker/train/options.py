"""Command-line options of both training programs."""

from __future__ import annotations

import argparse
import os

from gpuworker.runtime.option_types import non_negative_int, non_negative_number, positive_int, probability
from gpuworker.train import trackers, upload


def adam_betas(text: str) -> list[float]:
    numbers = [probability(word) for word in text.split(",")]
    if len(numbers) != 2:
        raise argparse.ArgumentTypeError(f"{text} is not two numbers with a comma between them")
    return numbers


def run_name(text: str) -> str:
    if text in ("", ".", "..") or "/" in text or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of one folder (from --run, or RUN_ID)")
    return text


def upload_command(text: str) -> list[str]:
    try:
        return upload.parse_command(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_common(parser: argparse.ArgumentParser, epochs: int, batch: int, lr: float) -> None:
    # fmt: off
    add = parser.add_argument_group("training").add_argument
    add("--epochs", type=positive_int, default=epochs, metavar="N", help=f"(default: {epochs})")
    add("--max-steps", type=positive_int, default=None, metavar="N",
        help="end after so many steps, even within an epoch (default: --epochs only)")
    add("--eval-every", type=non_negative_int, default=0, metavar="STEPS",
        help="evaluate after so many steps, in addition to the end of each epoch; 0: off (default: 0)")
    add("--batch", type=positive_int, default=batch, metavar="N", help=f"samples per rank and pass (default: {batch})")
    add("--grad-accum", dest="accumulate", type=positive_int, default=1, metavar="N",
        help="passes per optimizer step (default: 1)")
    add("--lr", type=non_negative_number, default=lr, metavar="X", help=f"peak learning rate (default: {lr:g})")
    add("--min-lr", type=non_negative_number, default=None, metavar="X",
        help="learning rate at the end of the cosine (default: a tenth of --lr)")
    add("--betas", type=adam_betas, default=[0.9, 0.999], metavar="A,B", help="of AdamW (default: 0.9,0.999)")
    add("--wd", type=non_negative_number, default=0.01, metavar="X", help="weight decay of matrices (default: 0.01)")
    add("--warmup", type=non_negative_number, default=0.03, metavar="X",
        help="fraction of the run below 1, else steps (default: 0.03)")
    add("--schedule", choices=["cosine", "constant"], default="cosine", help="after the warmup (default: cosine)")
    add("--clip", type=non_negative_number, default=1.0, metavar="X",
        help="maximum gradient norm; 0: unlimited (default: 1)")
    add("--seed", type=non_negative_int, default=42, metavar="N", help="(default: 42)")
    group = parser.add_argument_group("speed and memory")
    add, either = group.add_argument, group.add_mutually_exclusive_group().add_argument
    add("--device", choices=["cpu", "cuda"], default="", help="(default: cuda where there is one)")
    add("--engine", choices=["ddp", "fsdp"], default="ddp",
        help="ddp: the whole model on every rank; fsdp: a part of it on each (default: ddp)")
    either("--bf16", action="store_true", help="compute in bfloat16; weights stay in float32")
    either("--fp16", action="store_true",
        help="compute in float16 with a loss scaler, for GPUs without bfloat16 such as T4 and V100")
    add("--compile", action="store_true", help="use torch.compile; needs a C compiler in the image")
    add("--activation-checkpointing", action="store_true", help="compute twice to save memory")
    add("--find-unused-parameters", action="store_true", help="for models that skip parameters in some steps")
    add = parser.add_argument_group("output").add_argument
    add("--output", default="", metavar="DIR", help="write checkpoints and report to DIR/RUN (default: no output)")
    add("--run", type=run_name, default=os.environ.get("RUN_ID") or "run", metavar="NAME",
        help="(default: RUN_ID, or run)")
    add("--report-json", default="", metavar="FILE", help="(default: report.json in DIR/RUN)")
    add("--resume", choices=["auto", "never"], default="auto",
        help="auto: from the newest checkpoint of the run; never: set an earlier run's output aside (default: auto)")
    add("--save-every", type=non_negative_int, default=0, metavar="STEPS",
        help="save after so many steps, in addition to the end of each epoch; 0: off (default: 0)")
    add("--save-every-minutes", type=non_negative_number, default=15.0, metavar="MINUTES",
        help="save after so much time, and once after the first minute; 0: off (default: 15)")
    add("--keep", type=positive_int, default=2, metavar="N",
        help="newest checkpoints to keep, plus the best (default: 2)")
    add("--upload", type=upload_command, metavar="JSON", help=f"run for each checkpoint: {upload.HELP}")
    add("--upload-wait", type=non_negative_number, default=60.0, metavar="SECONDS",
        help="for uploads at the end (default: 60)")
    add("--log-every", type=positive_int, default=10, metavar="STEPS",
        help="interval of log lines and plot points (default: 10)")
    add("--log-batches", choices=["all", "first-last", "none"],
        help="log every step, the first and last of an epoch, or none, instead of every --log-every steps")
    add("--log-level", choices=["debug", "info", "warning", "error"], default="warning", help="log level of libraries")
    # fmt: on
    trackers.add_arguments(parser)


def check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End the program with a usage error for options that do not work together."""
    for name in ("compile", "find_unused_parameters", "lora"):
        if args.engine == "fsdp" and getattr(args, name, False):
            parser.error(f"--{name.replace('_', '-')} works with --engine ddp only")
    for name in ("lora_r", "lora_alpha", "lora_dropout", "target_modules"):
        if not getattr(args, "lora", True) and getattr(args, name) != parser.get_default(name):
            parser.error(f"--{name.replace('_', '-')} needs --lora")
    if args.min_lr is not None and args.min_lr > args.lr:
        parser.error(f"--min-lr {args.min_lr:g} is above --lr {args.lr:g}")
