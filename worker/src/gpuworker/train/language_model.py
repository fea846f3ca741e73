"""Training of a causal language model on token files."""

from __future__ import annotations

import argparse
import errno
import os
import time
from pathlib import Path

import torch
from torch import nn

from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log
from gpuworker.train import data_files, model, token_file
from gpuworker.train.agreement import files_fingerprint, require_same
from gpuworker.train.distributed import DistributedContext
from gpuworker.train.token_loss import token_loss


class LanguageModelLoss(nn.Module):
    """A causal language model that maps (inputs, labels), int64 [rows, width], to the sum of its tokens' losses."""

    def __init__(self, language_model: nn.Module):
        super().__init__()
        self.model = language_model

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return token_loss(self.model, inputs, labels)


class LanguageModelSpec:
    """TrainSpec of train_framework.py."""

    name = "lm"

    def __init__(self, args: argparse.Namespace, source: model.ModelSource, context: DistributedContext):
        self.args, self.source = args, source
        self.tokenizer = source.load_tokenizer()
        codec = model.token_codec(self.tokenizer, args.chat_date)
        cache, started = Path(args.cache), time.monotonic()
        context = context.translating(lambda error: data_problem(error, cache))
        with context.raise_on_all_ranks():
            if args.val:
                validation = data_files.find_files(args.val, of_validation=True)
            else:
                validation = data_files.default_validation(args.data)
            data = data_files.find_files(args.data, without=validation)
            facts = {
                "--data": files_fingerprint(data),
                "validation": files_fingerprint(validation) if validation else "no val.jsonl next to --data",
                "tokenizer": codec.digest[:16],
            }
        require_same(context, "the data", facts)
        train = token_file.prepare(data, codec, cache, context)
        self.pack = args.pack if args.pack is not None else not token_file.has_prompts(train, codec)
        self.same_shape = self.pack
        self.train = token_file.TokenDataset(train, args.seq_len, self.pack)
        seconds = time.monotonic() - started
        self.validation = None
        if validation:
            folder = token_file.prepare(validation, codec, cache, context)
            packed = self.pack and (args.pack or not token_file.has_prompts(folder, codec))
            self.validation = token_file.TokenDataset(folder, args.seq_len, packed)
        for name, samples in (("--data", self.train), ("--val", self.validation)):
            if samples is not None and not int(samples.label_counts.sum()):
                raise data_files.DataError(
                    f"{name}: it contains nothing to learn: no completions, or prompts longer than --seq-len?"
                )
        self.check_vocabulary()
        if context.is_rank_0:
            report_samples(args.data, self.train, args.seq_len, seconds=seconds)
            if self.validation:
                report_samples(args.val or str(validation[0]), self.validation, args.seq_len)
        self.identity = {
            "tokenizer": codec.digest[:16],
            "data": content_fingerprint(self.train),
            "seq_len": args.seq_len,
            "pack": self.pack,
            **source.identity(len(self.tokenizer), context.is_rank_0),
        }
        self.settings = {"validation": content_fingerprint(self.validation) if self.validation else "none"}
        if args.lora:
            self.settings["lora_dropout"] = args.lora_dropout
        require_same(context, "the model", dict(each.split("=", 1) for each in self.identity["config"]))
        require_same(context, "the data", {"tokens": self.identity["data"]})

    def check_vocabulary(self) -> None:
        """Raise ModelError for data with a token that the model does not know.

        A tokenizer may have more tokens than its model, such as one for padding, as long as no text contains them.
        """
        config = self.source.configuration(len(self.tokenizer)).get_text_config()
        known = getattr(config, "vocab_size", None)
        if not known or max(self.tokenizer.get_vocab().values()) < known:
            return
        for samples in filter(None, (self.train, self.validation)):
            least, most = (int(each) for each in torch.aminmax(samples.tokens))
            token = max(most, -least - 1)  # -t-1: a token t that is only read
            if token >= known:
                raise model.ModelError(
                    f"{self.source.name}: the model knows {known} tokens, and the data contains the token {token} "
                    f"({self.tokenizer.convert_ids_to_tokens(token)!r}) of the tokenizer: use the model's own one"
                )

    def build(
        self, context: DistributedContext, checkpoint: Path | None, device: torch.device | None = None
    ) -> nn.Module:
        language_model = self.source.load_model(len(self.tokenizer), checkpoint)
        return LanguageModelLoss(language_model).to(device or context.device)

    def build_empty(self) -> nn.Module:
        return LanguageModelLoss(self.source.empty_model(len(self.tokenizer)))

    def initialize(self, module: LanguageModelLoss) -> None:
        module.model.init_weights()

    def save(self, module: LanguageModelLoss, weights: dict[str, torch.Tensor], folder: Path) -> None:
        """Write the Hugging Face layout, which `from_pretrained` reads."""
        inner = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
        module.model.save_pretrained(folder, state_dict=inner)
        self.tokenizer.save_pretrained(folder)

    def save_description(self, module: LanguageModelLoss, folder: Path) -> None:
        module.model.config.save_pretrained(folder)
        if module.model.can_generate():
            module.model.generation_config.save_pretrained(folder)
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


def data_problem(error: Exception, cache: Path) -> Exception:
    """What the user can change about an error of the disk, as DataError; other errors as they are."""
    if isinstance(error, PermissionError):
        return data_files.DataError(f"{error.filename}: user {os.getuid()} cannot read it: {error.strerror}")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return data_files.DataError(f"--cache {cache}: {error.strerror}: it needs 8 bytes per token until it is done")
    return error


def report_samples(file: str, samples: token_file.TokenDataset, length: int, **more: object) -> None:
    found = samples.describe()
    facts = {"tokens": len(samples.tokens), "samples": len(samples), "pack": samples.pack, **found, **more}
    log(Tag.DATA, rank=0, file=file, **facts)
    if found.get("cut_learned") or found["left_out"]:
        log(
            Tag.DATA,
            rank=0,
            file=file,
            warning=f"not all is learned: see cut_learned and left_out, or raise --seq-len {length}",
        )


def content_fingerprint(samples: token_file.TokenDataset) -> str:
    """Token count and checksum. Independent of path and time, which differ between nodes and volumes."""
    sampled = samples.tokens[:: max(1, len(samples.tokens) // 4096)].long()
    checksum = int((sampled * torch.arange(1, len(sampled) + 1)).sum())
    return f"{len(samples.tokens)} tokens with checksum {checksum:x}"
