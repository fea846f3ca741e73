"""Model presets of --from-scratch, in the terms of transformers' configurations."""

from __future__ import annotations

SPECIAL_TOKENS = {"bos_token_id": 0, "eos_token_id": 0}


def gpt2(layers: int, width: int, heads: int) -> tuple[str, dict]:
    # No dropout: these presets are for runs of many epochs, and dropout costs memory.
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    # The same function as GPT-2's own "gelu_new" in one kernel: half the time and memory of a layer under autocast.
    sizes = {"n_layer": layers, "n_embd": width, "n_head": heads, "activation_function": "gelu_pytorch_tanh"}
    return "gpt2", {**sizes, **dropout, **SPECIAL_TOKENS}


def llama(layers: int, width: int, heads: int, kv_heads: int, inner: int) -> tuple[str, dict]:
    return "llama", {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "tie_word_embeddings": True,
        **SPECIAL_TOKENS,
    }


PRESETS = {
    "gpt2-tiny": gpt2(2, 64, 4),
    "gpt2-124m": gpt2(12, 768, 12),  # width and depth of GPT-2 small
    "llama-tiny": llama(2, 64, 4, 2, 176),
    "llama-1b": llama(16, 2048, 32, 8, 8192),  # as Llama 3.2 1B
}
