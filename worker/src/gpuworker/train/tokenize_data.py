"""Tokenization of the data of train_framework.py, as a step of its own on machines without GPUs.

  torchrun … -m gpuworker.train.tokenize_data --model-local-dir /models/llama --data /data --cache /out/tokens

It takes the flags of train_framework.py. A training with the same data, tokenizer and --cache, on a volume that all
nodes mount at the same place, finds the token files and starts at once.
"""

from __future__ import annotations

import argparse

from gpuworker.runtime.command_line import escape_output
from gpuworker.runtime.process_group import exit_now
from gpuworker.train import train_framework
from gpuworker.train.model import ModelSource
from gpuworker.train.program import run


def main(argv: list[str] | None = None) -> int:
    escape_output()
    parser = train_framework.make_parser()
    parser.prog, parser.description = "tokenize_data", __doc__
    parser.set_defaults(device="cpu", trackers="none")
    return run(parser, argv, make_spec, prepare=ModelSource, trains=False)


def make_spec(args: argparse.Namespace, context, source: ModelSource):
    from gpuworker.train.language_model import LanguageModelSpec

    source.fetch(context, with_weights=False)
    return LanguageModelSpec(args, source, context)


if __name__ == "__main__":
    exit_now(main())
