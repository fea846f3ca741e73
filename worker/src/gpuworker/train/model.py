"""Where the language model and its tokenizer come from: a local folder, the hub, or nothing but a shape.

Only rank 0 reads weights; the others get them from it when DistributedDataParallel begins. So 512 ranks do not read the
same file, and a checkpoint need be seen by rank 0 alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from pathlib import Path

import torch

from gpuworker.train.distributed import World
from gpuworker.train.model_presets import SHAPES
from gpuworker.train.token_file import Codec

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "vocab.txt")
WEIGHTS = ["*.safetensors", "*.safetensors.index.json"]


class ModelError(ValueError):
    """A model or tokenizer that cannot be used, and what to do about it."""


def check_model(folder: Path) -> None:
    """Whether a folder holds a whole model: its configuration and every weight, none cut short. Reads no weights."""
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder; is the models volume mounted?")
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder}: no config.json; this is no model in the Hugging Face layout")
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise ModelError(f"{index}: not a list of weights ({error}); copy the model again") from None
    elif not (folder / names[0]).is_file():
        others = sorted(path.name for path in folder.glob("*.bin"))
        hint = f"; {others[0]} is of the older kind: convert it to safetensors" if others else ""
        raise ModelError(f"{folder}: neither model.safetensors nor model.safetensors.index.json{hint}")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ModelError(
            f"{folder}: {len(missing)} of {len(names)} weight files are missing: {', '.join(missing[:8])}; "
            "copy the model again"
        )
    for name in names:
        if problem := cut_short(folder / name):
            raise ModelError(f"{folder / name}: {problem}; copy the file again")


def cut_short(path: Path) -> str:
    """What is wrong with a safetensors file's length: 8 bytes, a header of so many bytes, and the tensors it lists."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > size - 8:
            return f"is cut short: {size} bytes, and its header alone has {length}"
        try:
            header = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError):
            return "has no header of a safetensors file"
    whole = 8 + length + max(ends, default=0)
    return "" if size == whole else f"is cut short: {size} bytes of {whole}"


def check_tokenizer(folder: Path) -> None:
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder; is the models volume mounted?")
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise ModelError(f"{folder}: no tokenizer: none of {', '.join(TOKENIZERS)}")


class Source:
    """The model and tokenizer that the flags ask for, checked before any GPU is touched."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.shape = args, args.from_scratch
        local, named = args.model_local_dir, args.model
        if named and not local and Path(named).is_dir():
            local = named
        if self.shape and (local or named):
            raise ModelError("--from-scratch makes a model, --model loads one: give one of them")
        if not (self.shape or local or named):
            raise ModelError("which model? --model NAME, --model-local-dir FOLDER, or --from-scratch SHAPE")
        self.name = self.shape or local or named
        self.folder = Path(local) if local else None
        self.tokenizer = Path(args.tokenizer_local_dir) if args.tokenizer_local_dir else self.folder
        if self.folder:
            check_model(self.folder)
        if self.tokenizer:
            check_tokenizer(self.tokenizer)
        self.offline = args.local_files_only or bool(self.folder or self.shape)
        if self.offline:
            # Before transformers is imported, which reads it once.
            os.environ["HF_HUB_OFFLINE"] = "1"
        alone = os.environ.get("LOCAL_WORLD_SIZE", "1") == "1"  # else the node's processes are its parallelism
        os.environ.setdefault("TOKENIZERS_PARALLELISM", str(alone).lower())
        if args.lora:
            need("peft", "--lora")
        need("transformers", "this program")

    def fetch(self, world: World) -> None:
        """Get a model of the hub, one process a node; only rank 0's node gets weights. Collective."""
        if self.shape or self.folder:
            return
        with world.all_or_none():
            if world.node_lead:
                download(self.args.model, self.offline, weights=world.lead)
        with world.all_or_none():
            self.folder = download(self.args.model, True, weights=world.lead)
            if world.lead:
                check_model(self.folder)
            self.tokenizer = self.tokenizer or self.folder
            check_tokenizer(self.tokenizer)

    def load_tokenizer(self):
        from transformers import AutoTokenizer
        from transformers.utils import logging

        logging.set_verbosity(getattr(logging, self.args.log_level.upper()))
        logging.disable_progress_bar()
        if self.tokenizer:
            return AutoTokenizer.from_pretrained(self.tokenizer, local_files_only=True)
        return byte_tokenizer()

    def load_model(self, vocabulary: int, weights: bool, checkpoint: Path | None) -> torch.nn.Module:
        """In float32: AdamW on bfloat16 weights loses small steps. `weights` False: only the right shapes."""
        from transformers import AutoConfig, AutoModelForCausalLM

        lora, folder = self.args.lora, self.folder
        if checkpoint and not lora:
            folder = checkpoint
        if self.shape and not (checkpoint and not lora):
            kind, settings = SHAPES[self.shape]
            config = AutoConfig.for_model(kind, vocab_size=vocabulary, **settings, **length_of(kind, self.args.seq_len))
            model = AutoModelForCausalLM.from_config(config)
        elif weights:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
        else:
            config = AutoConfig.from_pretrained(self.folder or folder, local_files_only=True)
            config.dtype = torch.float32
            model = AutoModelForCausalLM.from_config(config)
        limit = getattr(model.config, "max_position_embeddings", None)
        if limit and limit < self.args.seq_len:
            raise ModelError(f"--seq-len {self.args.seq_len}: this model takes at most {limit} tokens")
        if self.args.activation_checkpointing:
            # By its newer name where there is one.
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            enable({"use_reentrant": False})
        return with_lora(model, self.args, checkpoint) if lora else model


def with_lora(model: torch.nn.Module, args: argparse.Namespace, checkpoint: Path | None) -> torch.nn.Module:
    import peft

    if args.activation_checkpointing:
        model.enable_input_require_grads()
    if checkpoint:
        return peft.PeftModel.from_pretrained(model, checkpoint, is_trainable=True)
    targets = [name.strip() for name in args.target_modules.split(",") if name.strip()]
    config = peft.LoraConfig(
        r=args.lora_r,
        lora_alpha=args.lora_alpha,
        lora_dropout=args.lora_dropout,
        target_modules=targets or "all-linear",
        task_type="CAUSAL_LM",
    )
    try:
        return peft.get_peft_model(model, config)
    except ValueError as error:  # no such modules
        raise ModelError(f"--target-modules {args.target_modules}: {error}") from None


def length_of(kind: str, tokens: int) -> dict[str, int]:
    return {"n_positions" if kind == "gpt2" else "max_position_embeddings": tokens}


def need(package: str, by: str) -> None:
    import importlib.util

    if not importlib.util.find_spec(package):
        raise ModelError(f"{by} needs the Python package {package}, which this image lacks; see docs/training.md")


def download(name: str, offline: bool, weights: bool) -> Path:
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.model", "*.txt", "*.jinja", *(WEIGHTS if weights else [])]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns, local_files_only=offline))
    except Exception as error:  # of HTTP, of the hub, of the disk: its text says which
        why = str(error).strip().splitlines() or [type(error).__name__]
        hint = "put the model on a volume and give --model-local-dir"
        if "gated" in str(error).lower() or "401" in str(error):
            hint = "accept its licence on the hub, and give a token as HF_TOKEN from a Secret"
        raise ModelError(f"model {name}: {type(error).__name__}: {why[0]}; {hint}") from None


def byte_tokenizer():
    """Every byte a token, and one for the end: for models made from nothing. Needs no files and no training."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<|end|>": 0, **{byte: number for number, byte in enumerate(alphabet, 1)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")


def codec(tokenizer) -> Codec:
    if tokenizer.eos_token_id is None:
        raise ModelError("the tokenizer has no end-of-text token (eos_token); add one to tokenizer_config.json")
    first = tokenizer("").input_ids[:1]
    bos = tokenizer.bos_token_id

    def encode(texts: list[str]) -> list[list[int]]:
        # verbose=False: a document longer than the model is no mistake here, it is cut into samples.
        return tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]

    def render(messages: list[dict], prompt: bool) -> str:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)

    template = tokenizer.chat_template
    known = [tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else repr(tokenizer), str(template)]
    return Codec(
        encode,
        bos if bos is not None and first == [bos] else None,
        tokenizer.eos_token_id,
        render if template else None,
        hashlib.sha256("\0".join(known).encode()).hexdigest(),
    )
