"""Low-rank adapters of a model's layers (--lora)."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from gpuworker.train.model_files import ModelError


def add_lora(model: torch.nn.Module, args: argparse.Namespace, checkpoint: Path | None) -> torch.nn.Module:
    """The model with new adapters, or with those of a checkpoint."""
    import peft

    if args.activation_checkpointing:
        model.enable_input_require_grads()
    if checkpoint:
        config = peft.LoraConfig.from_pretrained(checkpoint)
        config.lora_dropout = args.lora_dropout
        config.base_model_name_or_path = None  # the model may have moved: the place of today is saved
        adapted = peft.PeftModel.from_pretrained(model, checkpoint, is_trainable=True, config=config)
    else:
        adapted = new_adapters(model, args)
    require_weights_of_their_own(adapted, args.target_modules)
    return adapted


def new_adapters(model: torch.nn.Module, args: argparse.Namespace) -> torch.nn.Module:
    import peft

    targets = [name.strip() for name in args.target_modules.split(",") if name.strip()]
    config = peft.LoraConfig(
        r=args.lora_r,
        lora_alpha=args.lora_alpha,
        lora_dropout=args.lora_dropout,
        target_modules=targets or "all-linear",
        task_type="CAUSAL_LM",
    )
    names = [name for name, _ in model.named_modules()]
    unknown = [target for target in targets if not any(f".{name}".endswith(f".{target}") for name in names)]
    if unknown:
        known = sorted({name.rpartition(".")[2] for name, each in model.named_modules() if hasattr(each, "weight")})
        raise ModelError(f"--target-modules: the model has no {', '.join(unknown)}; it has {', '.join(known)}")
    try:
        return peft.get_peft_model(model, config)
    except ValueError as error:  # modules that cannot have adapters
        raise ModelError(f"--target-modules {args.target_modules}: {error}") from None


def require_weights_of_their_own(adapted: torch.nn.Module, targets: str) -> None:
    """Raise ModelError for adapters of a weight that two layers use, as those of tied embeddings.

    The adapters change one of both layers. Added to the weight, they would change the other one too.
    """
    users: dict[torch.nn.Parameter, list[str]] = {}
    for name, module in adapted.named_modules():
        if (weight := dict(module.named_parameters(recurse=False)).get("weight")) is not None:
            users.setdefault(weight, []).append(name)
    for names in users.values():
        adapting = [name for name in names if name.endswith(".base_layer")]
        if adapting and len(names) > 1:
            layers = [name.removesuffix(".base_layer").rpartition(".")[2] for name in names]
            raise ModelError(
                f"--target-modules {targets}: {' and '.join(layers)} share their weights (tied embeddings), so the "
                "adapters of one of them cannot be added to these: leave it out, or use a model with "
                "tie_word_embeddings=false"
            )
