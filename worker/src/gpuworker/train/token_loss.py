"""Sum of the losses of the tokens of a batch, in parts, so that not all logits exist at the same time.

Logits are the largest tensors of many trainings: with 128,000 words a token has 0.5 MB of them in float32, and as much
for their gradient. Each part is computed again in the backward pass, which costs one more product with the output
embeddings.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from gpuworker.train.token_file import IGNORE_INDEX

PART_BYTES = 256 << 20  # of logits in float32
# Types whose logits are the product of the last hidden state and the output embeddings, and nothing more. Others scale
# or cap them.
PLAIN = ("gemma", "gpt2", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3")


def token_loss(language_model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Loss of `inputs` and `labels`, int64 [rows, width]. A label of IGNORE_INDEX has none."""
    whole = getattr(language_model, "get_base_model", lambda: language_model)()  # adapters are inside its layers
    head = whole.get_output_embeddings()
    tokens = max(1, PART_BYTES // (4 * whole.config.vocab_size))
    if labels.numel() <= tokens or whole.config.model_type not in PLAIN:
        return cross_entropy(language_model(input_ids=inputs, use_cache=False).logits.flatten(0, 1), labels.flatten())
    hidden = whole.base_model(input_ids=inputs, use_cache=False).last_hidden_state.flatten(0, 1)
    parts = zip(hidden.split(tokens), labels.flatten().split(tokens), strict=True)
    losses = [checkpoint(loss_of_part, head, part, wanted, use_reentrant=False) for part, wanted in parts]
    return torch.stack(losses).sum()


def loss_of_part(head: nn.Module, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return cross_entropy(head(hidden), labels)


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.float(), labels, ignore_index=IGNORE_INDEX, reduction="sum")
