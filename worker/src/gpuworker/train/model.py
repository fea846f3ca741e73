"""Source of the language model and its tokenizer: a local folder, the hub, or a preset with random weights.

Only rank 0 reads weights, or draws random ones. The others receive them from it. So 512 ranks do not read the same
file, only rank 0 needs access to a checkpoint, and a host holds one copy of the model for all its ranks.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
import re
from datetime import datetime
from pathlib import Path

import torch

from gpuworker.train import attention
from gpuworker.train.dataset import MarkedTemplate, Span
from gpuworker.train.distributed import DistributedContext
from gpuworker.train.lora import add_lora
from gpuworker.train.model_files import (
    ModelError,
    base_fingerprints,
    check_model,
    check_tokenizer,
    config_facts,
    describe_misfit,
    describe_names,
    facts_of,
    reading,
)
from gpuworker.train.model_presets import PRESETS
from gpuworker.train.token_file import Encoded, TokenCodec

WEIGHT_FILES = ["*.safetensors", "*.safetensors.index.json"]


class ModelSource:
    """Model and tokenizer that the flags select, checked before any GPU is used."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.preset = args, args.from_scratch
        local, named = args.model_local_dir, args.model
        if named and not local and Path(named).is_dir():
            local = named
        if self.preset and (local or named):
            raise ModelError("--from-scratch creates a model and --model loads one: use only one of them")
        if not (self.preset or local or named):
            raise ModelError("no model: set --model NAME, --model-local-dir DIR, or --from-scratch PRESET")
        self.name = self.preset or local or named
        self.folder = Path(local) if local else None
        self.tokenizer = Path(args.tokenizer_local_dir) if args.tokenizer_local_dir else self.folder
        if self.folder:
            check_model(self.folder)
        if self.tokenizer:
            check_tokenizer(self.tokenizer)
        self.offline = args.local_files_only or bool(self.folder or self.preset)
        if self.offline:
            # Set before transformers is imported, which reads it once.
            os.environ["HF_HUB_OFFLINE"] = "1"
        # With several processes per node, those are the parallelism.
        single = os.environ.get("LOCAL_WORLD_SIZE", "1") == "1"
        os.environ.setdefault("TOKENIZERS_PARALLELISM", str(single).lower())
        if args.lora:
            require_package("peft", "--lora")
        require_package("transformers", "this program")

    def config_facts(self, vocabulary_size: int) -> list[str]:
        """What identifies the model itself, whatever the name of its folder."""
        return facts_of(self.preset_config(vocabulary_size)) if self.preset else config_facts(self.folder)

    def identity(self, vocabulary_size: int, reads_weights: bool) -> dict[str, object]:
        """What a checkpoint must share to be resumed: the model, and with LoRA the adapters' form."""
        args = self.args
        facts: dict[str, object] = {
            "model": Path(self.name).name,  # for readers: with the next two, names do not matter
            "config": self.config_facts(vocabulary_size),
            "lora": args.lora,
        }
        if self.folder and reads_weights:
            facts["base_model"] = base_fingerprints(self.folder)
        if args.lora:
            facts |= {"lora_r": args.lora_r, "lora_alpha": args.lora_alpha, "targets": args.target_modules}
        return facts

    def fetch(self, context: DistributedContext, with_weights: bool = True) -> None:
        """Download a model from the hub with one process per node, weights only on rank 0's node. Collective."""
        weights = with_weights and context.is_rank_0
        if self.preset or self.folder:
            return
        with context.raise_on_all_ranks():
            if context.is_local_rank_0:
                download(self.args.model, self.offline, weights)
        with context.raise_on_all_ranks():
            self.folder = download(self.args.model, True, weights)
            if weights:
                check_model(self.folder)
            self.tokenizer = self.tokenizer or self.folder
            check_tokenizer(self.tokenizer)

    def load_tokenizer(self):
        from transformers import AutoTokenizer
        from transformers.utils import logging

        logging.set_verbosity(getattr(logging, self.args.log_level.upper()))
        logging.disable_progress_bar()
        if self.tokenizer:
            with reading(self.tokenizer):
                return AutoTokenizer.from_pretrained(self.tokenizer, local_files_only=True)
        return byte_tokenizer()

    def load_model(self, vocabulary_size: int, checkpoint: Path | None) -> torch.nn.Module:
        """Model on rank 0, from its folder or a checkpoint's, or with random weights."""
        from transformers import AutoModelForCausalLM

        lora, folder = self.args.lora, self.folder
        if checkpoint and not lora:
            folder = checkpoint
        if folder:
            with reading(folder):
                model = load_weights(folder, self.configuration(vocabulary_size))
        else:
            model = AutoModelForCausalLM.from_config(self.configuration(vocabulary_size))
        self.prepare(model)
        return add_lora(model, self.args, checkpoint) if lora else model

    def empty_model(self, vocabulary_size: int) -> torch.nn.Module:
        """The model on the meta device: shapes and no memory."""
        from transformers import AutoModelForCausalLM

        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(self.configuration(vocabulary_size))
            self.prepare(model)
            return add_lora(model, self.args, None) if self.args.lora else model

    def configuration(self, vocabulary_size: int):
        from transformers import AutoConfig

        if self.preset:
            config = AutoConfig.for_model(**self.preset_config(vocabulary_size))
        else:
            with reading(self.folder):
                config = AutoConfig.from_pretrained(self.folder, local_files_only=True)
            config.dtype = torch.float32
        if self.args.compile and attention.is_plain(config):
            config._attn_implementation = attention.without_mask()
        return config

    def preset_config(self, vocabulary_size: int) -> dict[str, object]:
        kind, settings = PRESETS[self.preset]
        length = {"n_positions" if kind == "gpt2" else "max_position_embeddings": self.args.seq_len}
        return {"model_type": kind, "vocab_size": vocabulary_size, **settings, **length}

    def prepare(self, model: torch.nn.Module) -> None:
        limit = getattr(model.config, "max_position_embeddings", None)
        if limit and limit < self.args.seq_len:
            raise ModelError(f"--seq-len {self.args.seq_len}: the limit of this model is {limit} tokens")
        if self.args.activation_checkpointing:
            # The method has a newer name in newer versions.
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            enable({"use_reentrant": False})


def load_weights(folder: Path, config) -> torch.nn.Module:
    """Model in float32, because AdamW on bfloat16 weights loses small steps. Raises ModelError if tensors do not fit.

    Without that, transformers gives random values to what is missing, and ignores the rest.
    """
    from transformers import AutoModelForCausalLM

    model, found = AutoModelForCausalLM.from_pretrained(
        folder,
        config=config,
        dtype=torch.float32,
        local_files_only=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # else the error has a traceback
    )
    shapes = [f"{name} is {tuple(is_)}, not {tuple(due)}" for name, is_, due in found["mismatched_keys"]]
    if misfit := describe_misfit(found["missing_keys"], found["unexpected_keys"], shapes):
        raise ModelError(f"{folder}: the tensors do not fit config.json: {misfit}")
    wrong = [name for name, tensor in model.named_parameters() if not tensor.isfinite().all()]
    if wrong:
        raise ModelError(f"{folder}: infinite or not a number: {describe_names(wrong)}; copy the model again")
    return model


def require_package(package: str, by: str) -> None:
    import importlib.util

    if not importlib.util.find_spec(package):
        raise ModelError(f"{by} needs the Python package {package}, which is not in this image; see docs/training.md")


def download(name: str, offline: bool, weights: bool) -> Path:
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.model", "*.txt", "*.jinja", *(WEIGHT_FILES if weights else [])]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns, local_files_only=offline))
    except Exception as error:  # of HTTP, the hub or the disk
        why = str(error).strip().splitlines() or [type(error).__name__]
        hint = "put the model on a volume and set --model-local-dir"
        if "gated" in str(error).lower() or "401" in str(error):
            hint = "accept its license on the hub, and set HF_TOKEN from a Secret"
        raise ModelError(f"model {name}: {type(error).__name__}: {why[0]}; {hint}") from None


def byte_tokenizer():
    """Tokenizer for presets: one token per byte, and one for the end of text. Needs no files and no training."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<|end|>": 0, **{byte: number for number, byte in enumerate(alphabet, 1)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")


@functools.cache
def with_date(template: str, date: str | None) -> str:
    """The template with a clock that stands still, or that ends the program: the tokens would change every day.

    A macro, because transformers passes no functions to templates.
    """
    if "strftime_now" not in template:
        return template
    if date:
        day = datetime.fromisoformat(date)
        forms = {f"%{letter}": day.strftime(f"%{letter}") for letter in "aAbBcdHIjmMpSUwWxXyY"}
        body = "{{- form" + "".join(f" | replace({form!r}, {text!r})" for form, text in forms.items()) + " -}}"
    else:
        body = "{{- raise_exception('it writes the date of today: set --chat-date') -}}"
    return f"{{%- macro strftime_now(form) -%}}{body}{{%- endmacro %}}{{{{ '' }}}}{template}"


def token_codec(tokenizer, chat_date: str | None = None) -> TokenCodec:
    """`chat_date`: the date, as 2026-01-31, that a chat template gets which asks for today's."""
    if tokenizer.eos_token_id is None:
        raise ModelError("the tokenizer has no end-of-text token (eos_token); add one to tokenizer_config.json")
    first = tokenizer("").input_ids[:1]
    bos = tokenizer.bos_token_id

    if not tokenizer.is_fast:
        raise ModelError(
            "the tokenizer has no tokenizer.json, so the places of its tokens in a text are unknown; convert it with "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...) and a version of transformers that supports it"
        )

    def encode(texts: list[str]) -> list[Encoded]:
        # verbose=False: a document longer than the model's limit is not an error, because it is cut into samples.
        found = tokenizer(texts, add_special_tokens=False, verbose=False, return_offsets_mapping=True)
        return list(zip(found["input_ids"], found["offset_mapping"], strict=True))

    def template(messages: list[dict], prompt: bool, tools: list | None = None) -> str:
        dated = with_date(tokenizer.get_chat_template(tools=tools), chat_date)
        return tokenizer.apply_chat_template(
            messages, tools, chat_template=dated, tokenize=False, add_generation_prompt=prompt
        )

    def render(messages: list[dict], tools: list | None) -> tuple[str, list[Span]]:
        from transformers.utils import chat_template_utils

        texts, spans = chat_template_utils.render_jinja_template(
            [messages],
            tools=tools,
            chat_template=with_date(tokenizer.get_chat_template(tools=tools), chat_date),
            return_assistant_tokens_mask=True,
            **tokenizer.special_tokens_map,
        )
        return texts[0], spans[0]

    chat_template = tokenizer.chat_template
    marked = re.search(r"\{%-?\s*generation\s*-?%\}", str(chat_template))
    known = [tokenizer.backend_tokenizer.to_str(), str(chat_template)]
    if chat_date and "strftime_now" in str(chat_template):
        known.append(chat_date)
    return TokenCodec(
        encode,
        bos if bos is not None and first == [bos] else None,
        tokenizer.eos_token_id,
        (MarkedTemplate(render) if marked else template) if chat_template else None,
        hashlib.sha256("\0".join(known).encode()).hexdigest(),
    )
