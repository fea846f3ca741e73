"""train_framework.py: trains a causal language model on JSONL, from one CPU process to 64 × 8 GPUs.

  torchrun … /app/src/train_framework.py --model-local-dir /models/llama --data /data/train.jsonl --output /out --bf16
  train_framework.py --from-scratch gpt2-tiny --epochs 3       on the text that comes with it

A line of the data is {"text": …}, {"prompt": …, "completion": …} or {"messages": […]}; docs/training.md says the rest.
Exit codes: 0 done; 1 failed; 2 the flags, the data or the model are wrong; 75 stopped and saved: start it again;
143 stopped, with no place to save to.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from gpuworker.runtime.process_exit import leave
from gpuworker.train import options
from gpuworker.train.model import Source
from gpuworker.train.model_presets import SHAPES
from gpuworker.train.program import run

SHIPPED = Path(__file__).parent / "data" / "train.jsonl"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="train_framework.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    group = made.add_argument_group("model")
    group.add_argument("--model", default="", metavar="NAME", help="name on the Hugging Face hub, or a folder")
    group.add_argument(
        "--model-local-dir", default="", metavar="DIR", help="folder with the model; nothing is downloaded"
    )
    group.add_argument("--tokenizer-local-dir", default="", metavar="DIR", help="folder with the tokenizer, if another")
    group.add_argument("--local-files-only", action="store_true", help="never ask the hub")
    group.add_argument(
        "--from-scratch",
        choices=sorted(SHAPES),
        metavar="SHAPE",
        help=f"no model but a shape: {', '.join(sorted(SHAPES))}",
    )
    group = made.add_argument_group("data")
    group.add_argument(
        "--data", default=str(SHIPPED), metavar="FILE", help="JSONL (default: a small text that is shipped)"
    )
    group.add_argument(
        "--val", default="", metavar="FILE", help="JSONL for evaluation (default: val.jsonl beside --data)"
    )
    group.add_argument("--seq-len", type=options.count, default=512, metavar="N", help="tokens of a sample (512)")
    group.add_argument(
        "--no-pack",
        dest="pack",
        action="store_false",
        help="one document a sample, instead of cutting a stream of them",
    )
    group.add_argument(
        "--cache",
        default=os.path.join(tempfile.gettempdir(), "gpuworker-cache"),
        metavar="DIR",
        help="tokens are kept here, on each node: 4 bytes each (default: below TMPDIR)",
    )
    group = made.add_argument_group("LoRA")
    group.add_argument("--lora", action="store_true", help="train small matrices beside the frozen weights; needs peft")
    group.add_argument("--lora-r", type=options.count, default=16, metavar="N")
    group.add_argument("--lora-alpha", type=options.count, default=32, metavar="N")
    group.add_argument("--lora-dropout", type=float, default=0.05, metavar="P")
    group.add_argument("--target-modules", default="", metavar="A,B", help="names of layers (default: all linear ones)")
    options.add_common(made, epochs=1, batch=8, lr=2e-5)
    return made


def main(argv: list[str] | None = None) -> int:
    return run(parser(), argv, task, prepare=Source)


def task(args: argparse.Namespace, world, source: Source):
    from gpuworker.train.language_model import LanguageModel

    source.fetch(world)
    return LanguageModel(args, source, world)


if __name__ == "__main__":
    leave(main())
