"""Training of a causal language model on token files."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log
from gpuworker.train import model, token_file
from gpuworker.train.distributed import DistributedContext


class LanguageModelLoss(nn.Module):
    """A causal language model that maps (inputs, labels), int64 [rows, width], to the sum of its tokens' losses."""

    def __init__(self, language_model: nn.Module):
        super().__init__()
        self.model = language_model

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.model(input_ids=inputs, use_cache=False).logits
        return functional.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), ignore_index=token_file.IGNORE_INDEX, reduction="sum"
        )


class LanguageModelSpec:
    """TrainSpec of train_framework.py."""

    name = "lm"

    def __init__(self, args: argparse.Namespace, source: model.ModelSource, context: DistributedContext):
        self.args, self.source = args, source
        self.tokenizer = source.load_tokenizer()
        codec = model.token_codec(self.tokenizer)
        cache, started = Path(args.cache), time.monotonic()
        train = token_file.prepare(Path(args.data), codec, cache, context)
        self.train = token_file.TokenDataset(train, args.seq_len, args.pack)
        if context.is_rank_0:
            count, samples = len(self.train.tokens), len(self.train)
            log(Tag.DATA, rank=0, file=args.data, tokens=count, samples=samples, seconds=time.monotonic() - started)
        validation = Path(args.val) if args.val else Path(args.data).with_name("val.jsonl")
        self.validation = None
        if args.val or (validation.is_file() and validation.resolve() != Path(args.data).resolve()):
            self.validation = token_file.TokenDataset(
                token_file.prepare(validation, codec, cache, context), args.seq_len, args.pack
            )
        for name, samples in (("--data", self.train), ("--val", self.validation)):
            if samples is not None and not int(samples.label_counts.sum()):
                raise token_file.DataError(f"{name}: it contains nothing to learn: all prompts and no completions?")
        self.identity = {
            "model": Path(source.name).name,
            "tokenizer": codec.digest[:16],
            "data": content_fingerprint(self.train),
            "seq_len": args.seq_len,
            "pack": args.pack,
            "lora": bool(args.lora),
        }

    def build(self, context: DistributedContext, checkpoint: Path | None) -> nn.Module:
        language_model = self.source.load_model(len(self.tokenizer), context.is_rank_0, checkpoint)
        return LanguageModelLoss(language_model).to(context.device)

    def save(self, module: LanguageModelLoss, folder: Path) -> None:
        """Write the Hugging Face layout, which `from_pretrained` reads."""
        module.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def flops_per_token(self, module: LanguageModelLoss) -> float:
        """6 operations per parameter in a matrix product, and 12 · layers · width · length for attention.

        Source: Chowdhery et al., PaLM, appendix B. Frozen parameters have no gradient: 4 operations.
        """
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


def content_fingerprint(samples: token_file.TokenDataset) -> list[int]:
    """Token count and checksum. Independent of path and time, which differ between nodes and volumes."""
    sampled = samples.tokens[:: max(1, len(samples.tokens) // 4096)].long()
    checksum = int((sampled * torch.arange(1, len(sampled) + 1)).sum())
    return [len(samples.tokens), checksum]
