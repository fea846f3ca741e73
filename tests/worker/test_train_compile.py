"""Training with --compile: the compiled model computes the same, with attention that flash attention can take."""

from __future__ import annotations

import copy

import pytest
import torch

pytest.importorskip("transformers")

from gpuworker.train import attention
from gpuworker.train.language_model import LanguageModelLoss
from gpuworker.train.model import ModelSource
from gpuworker.train.train_framework import make_parser

SDPA = torch.nn.functional.scaled_dot_product_attention


def model(preset: str, *flags: str) -> LanguageModelLoss:
    torch.manual_seed(0)
    arguments = ["--from-scratch", preset, "--data", "none", "--seq-len", "32", *flags]
    return LanguageModelLoss(ModelSource(make_parser().parse_args(arguments)).load_model(257, None)).train()


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["gpt2-tiny", "llama-tiny"])
def test_compiled_attention_is_causal_without_a_mask_and_the_loss_is_the_same(preset):
    plain, compiled = model(preset), model(preset, "--compile")
    calls = []

    def backend(graph: torch.fx.GraphModule, _):
        calls.extend(copy.copy(node.kwargs) for node in graph.graph.nodes if node.target is SDPA)
        return graph.forward

    tokens = torch.randint(257, (2, 32))
    with torch.no_grad():
        loss = torch.compile(compiled, backend=backend)(tokens, tokens)
        torch.testing.assert_close(loss, plain(tokens, tokens))
    assert [(each["attn_mask"], each["is_causal"]) for each in calls] == [(None, True)] * 2


@pytest.mark.parametrize(
    ("kind", "settings", "is_plain"),
    [
        ("mistral", {"sliding_window": None}, True),
        ("mistral", {"sliding_window": 8}, False),
        ("gemma2", {}, False),
        ("bloom", {}, False),
    ],
)
def test_windows_and_biases_of_attention_keep_their_mask(kind, settings, is_plain):
    from transformers import AutoConfig

    assert attention.is_plain(AutoConfig.for_model(kind, **settings)) == is_plain
