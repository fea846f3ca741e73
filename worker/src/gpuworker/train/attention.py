"""Attention of compiled models.

While torch.compile traces, transformers makes a mask also where attention is only causal. With a mask torch cannot use
flash attention, so such models get transformers' own function without one.
"""

from __future__ import annotations

PLAIN = ("gemma", "gpt2", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3")  # no bias, no mask of their own
NAME = "sdpa_without_mask"


def is_plain(config) -> bool:
    """Whether every token of this model attends to all that precede it."""
    windows = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    return config.model_type in PLAIN and not windows and not getattr(config, "sliding_window", None)


def without_mask() -> str:
    """Name under which transformers finds its sdpa, and no function that makes a mask: torch gets `is_causal`."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(NAME, sdpa_attention_forward)
    return NAME
