"""Training of a causal language model on JSONL (train_framework.py), from one CPU process to many nodes of GPUs.

  torchrun … /app/src/train_framework.py --model-local-dir /models/llama --data /data/train.jsonl --output /out --bf16
  train_framework.py --from-scratch gpt2-tiny --epochs 3       on the included text

A line of the data is {"text": …}, {"prompt": …, "completion": …} or {"messages": […]}. See docs/training.md.
Exit codes: 0 done; 1 failed; 2 wrong flags, data or model; 75 stopped and saved, start it again; 143 stopped without a
checkpoint, because --output is not set.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from gpuworker.runtime.command_line import escape_output
from gpuworker.runtime.option_types import date, positive_int, probability
from gpuworker.runtime.process_group import exit_now
from gpuworker.train import options
from gpuworker.train.model import ModelSource
from gpuworker.train.model_presets import PRESETS
from gpuworker.train.parser import Parser
from gpuworker.train.program import run

INCLUDED_DATA = Path(__file__).parent / "data" / "train.jsonl"


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="train_framework.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    # fmt: off
    add = parser.add_argument_group("model").add_argument
    add("--model", default="", metavar="NAME", help="name on the Hugging Face Hub, or a folder")
    add("--model-local-dir", default="", metavar="DIR", help="model folder; nothing is downloaded")
    add("--tokenizer-local-dir", default="", metavar="DIR", help="tokenizer folder (default: the model folder)")
    add("--local-files-only", action="store_true", help="do not connect to the hub")
    add("--from-scratch", choices=sorted(PRESETS), metavar="PRESET",
        help=f"random weights in the form of a preset: {', '.join(sorted(PRESETS))}")
    add = parser.add_argument_group("data").add_argument
    add("--data", default=str(INCLUDED_DATA), metavar="FILES",
        help="JSONL (also .gz, .zst) or Parquet: file, folder, or pattern in quotes (default: the included text)")
    add("--val", default="", metavar="FILES", help="the same for evaluation (default: val.jsonl next to --data)")
    add("--seq-len", type=positive_int, default=512, metavar="N", help="tokens per sample (default: 512)")
    add("--pack", action=argparse.BooleanOptionalAction, default=None,
        help="cut a stream of documents every --seq-len tokens, or one document per sample "
        "(default: --pack, but --no-pack for data with prompts or conversations)")
    add("--chat-date", type=date, metavar="YYYY-MM-DD", help="date for a chat template that writes today's")
    add("--cache", default=os.path.join(tempfile.gettempdir(), "gpuworker-cache"), metavar="DIR",
        help="token files, 4 bytes per token, on each node or on a volume of all (default: below TMPDIR)")
    add = parser.add_argument_group("LoRA").add_argument
    add("--lora", action="store_true", help="train low-rank adapters of frozen weights; needs peft")
    add("--lora-r", type=positive_int, default=16, metavar="N", help="rank of the adapters (default: 16)")
    add("--lora-alpha", type=positive_int, default=32, metavar="N", help="scale of the adapters (default: 32)")
    add("--lora-dropout", type=probability, default=0.05, metavar="P",
        help="dropout of the adapters (default: 0.05)")
    add("--target-modules", default="", metavar="A,B", help="layer names (default: all linear layers)")
    # fmt: on
    options.add_common(parser, epochs=1, batch=8, lr=2e-5)
    return parser


def main(argv: list[str] | None = None) -> int:
    escape_output()
    return run(make_parser(), argv, make_spec, prepare=ModelSource)


def make_spec(args: argparse.Namespace, context, source: ModelSource):
    from gpuworker.train.language_model import LanguageModelSpec

    source.fetch(context)
    return LanguageModelSpec(args, source, context)


if __name__ == "__main__":
    exit_now(main())
