"""Small models in the Hugging Face layout, as folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch

from gpuworker.train import model
from gpuworker.train.model_presets import PRESETS


def make_model(folder: Path, seed: int = 1, **changes: object) -> Path:
    """A Llama with random weights and a token for each byte, in a new folder."""
    import transformers

    kind, settings = PRESETS["llama-tiny"]
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(kind, vocab_size=257, **{**settings, **changes})
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    model.byte_tokenizer().save_pretrained(folder)
    return folder


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Write the tensors again after `edit` has changed the dictionary, or what it returns in its place."""
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file(edit(tensors) or tensors, path, metadata={"format": "pt"})
