"""Fine-tuning of a causal language model, as the loop sees it."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from gpuworker.runtime.log import log
from gpuworker.train import model, token_file
from gpuworker.train.distributed import World


class LossOf(nn.Module):
    """A causal language model that maps (inputs, labels), int64 [rows, width], to the sum of its tokens' losses."""

    def __init__(self, language_model: nn.Module):
        super().__init__()
        self.model = language_model

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.model(input_ids=inputs, use_cache=False).logits
        return functional.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), ignore_index=token_file.IGNORED, reduction="sum"
        )


class LanguageModel:
    name = "lm"

    def __init__(self, args: argparse.Namespace, source: model.Source, world: World):
        self.args, self.source = args, source
        self.tokenizer = source.load_tokenizer()
        codec = model.codec(self.tokenizer)
        cache, begun = Path(args.cache), time.monotonic()
        train = token_file.prepare(Path(args.data), codec, cache, world)
        self.train = token_file.Samples(train, args.seq_len, args.pack)
        if world.lead:
            count, samples = len(self.train.tokens), len(self.train)
            log("DATA", rank=0, file=args.data, tokens=count, samples=samples, seconds=time.monotonic() - begun)
        validation = Path(args.val) if args.val else Path(args.data).with_name("val.jsonl")
        self.validation = None
        if args.val or (validation.is_file() and validation.resolve() != Path(args.data).resolve()):
            self.validation = token_file.Samples(
                token_file.prepare(validation, codec, cache, world), args.seq_len, args.pack
            )
        for name, samples in (("--data", self.train), ("--val", self.validation)):
            if samples is not None and not int(samples.learned.sum()):
                raise token_file.DataError(f"{name}: nothing in it is learned: all prompts and no completions?")
        self.identity = {
            "model": Path(source.name).name,
            "tokenizer": codec.digest[:16],
            "data": content(self.train),
            "seq_len": args.seq_len,
            "pack": args.pack,
            "lora": bool(args.lora),
        }

    def build(self, world: World, checkpoint: Path | None) -> nn.Module:
        return LossOf(self.source.load_model(len(self.tokenizer), world.lead, checkpoint)).to(world.device)

    def save(self, module: LossOf, folder: Path) -> None:
        """The layout of Hugging Face, so that `from_pretrained` reads a checkpoint."""
        module.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def flops(self, module: LossOf) -> float:
        """6 operations a parameter that multiplies, and 12 · layers · width · length for attention (Chowdhery et al.,
        PaLM, appendix B). Frozen parameters need no gradient of their own: 4 operations."""
        config = module.model.config
        try:
            layers, width = config.num_hidden_layers, config.hidden_size
        except AttributeError:
            return 0.0
        tables = {id(each.weight) for each in module.modules() if isinstance(each, nn.Embedding)}
        output = module.model.get_output_embeddings()
        used = {id(output.weight)} if output is not None else set()
        counted = [each for each in module.parameters() if id(each) not in tables or id(each) in used]
        weights = sum((6 if each.requires_grad else 4) * each.numel() for each in counted)
        return weights + 12 * layers * width * self.args.seq_len


def content(samples: token_file.Samples) -> list[int]:
    """What tells one data set from another, without its path or time, which change between nodes and volumes."""
    sampled = samples.tokens[:: max(1, len(samples.tokens) // 4096)].long()
    checksum = int((sampled * torch.arange(1, len(sampled) + 1)).sum())
    return [len(samples.tokens), checksum]
