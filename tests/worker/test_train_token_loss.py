"""The loss in parts has the value and the gradients of the whole, and the logits of a batch never exist at once."""

from __future__ import annotations

import pytest
import torch

from gpuworker.train import token_loss
from gpuworker.train.token_file import IGNORE_INDEX
from tests.helpers.train_worlds import DATA, LM, Ranks, report

WORDS, ROWS, WIDTH, PART = 128, 3, 24, 10
SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 0,
    "eos_token_id": 0, "max_position_embeddings": 64,
}  # fmt: skip


def model_of(kind: str) -> torch.nn.Module:
    import transformers

    torch.manual_seed(1)
    gpt2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    settings = gpt2 | {key: SMALL[key] for key in ("vocab_size", "bos_token_id", "eos_token_id")}
    config = transformers.AutoConfig.for_model(kind, **(settings if kind == "gpt2" else SMALL))
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(2)
    labels = torch.randint(0, WORDS, (ROWS, WIDTH))
    labels[torch.rand(ROWS, WIDTH) < 0.3] = IGNORE_INDEX
    return torch.randint(0, WORDS, (ROWS, WIDTH)), labels


def loss_and_gradients(model: torch.nn.Module) -> tuple[torch.Tensor, list[torch.Tensor], int]:
    """Loss, gradients, and the most tokens that the output embeddings got at once."""
    rows: list[int] = []
    handle = model.get_output_embeddings().register_forward_hook(
        lambda module, inputs, output: rows.append(output.shape[:-1].numel())
    )
    model.zero_grad()
    loss = token_loss.token_loss(model, *batch())
    loss.backward()
    handle.remove()
    return loss.detach(), [each.grad.clone() for each in model.parameters() if each.grad is not None], max(rows)


@pytest.mark.slow
@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("kind", token_loss.PLAIN)
def test_parts_have_the_loss_and_the_gradients_of_the_whole(monkeypatch, kind, bf16):
    model = model_of(kind)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        whole, gradients, most = loss_and_gradients(model)
        assert most == ROWS * WIDTH
        monkeypatch.setattr(token_loss, "PART_BYTES", 4 * WORDS * PART)
        found, others, most = loss_and_gradients(model)
    assert most == PART
    limit = 2e-2 if bf16 else 1e-5
    assert torch.allclose(found, whole, rtol=1e-6)
    assert len(others) == len(gradients) > 4
    for gradient, other in zip(gradients, others, strict=True):
        assert (gradient - other).abs().max() <= limit * gradient.abs().max()


def test_a_type_that_changes_its_logits_is_computed_whole(monkeypatch):
    """gemma2 caps its logits, so the product alone would be another loss."""
    model = model_of("gemma2")
    whole, _, _ = loss_and_gradients(model)
    monkeypatch.setattr(token_loss, "PART_BYTES", 4 * WORDS * PART)
    found, _, most = loss_and_gradients(model)
    assert most == ROWS * WIDTH and found == whole


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft calls what transformers is going to remove
def test_adapters_learn_from_parts(monkeypatch):
    import peft

    model = peft.get_peft_model(model_of("llama"), peft.LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM"))
    whole, gradients, _ = loss_and_gradients(model)
    monkeypatch.setattr(token_loss, "PART_BYTES", 4 * WORDS * PART)
    found, others, most = loss_and_gradients(model)
    assert most == PART and torch.allclose(found, whole, rtol=1e-6)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(gradients, others, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_both_engines_train_on_parts(tmp_path, engine):
    """Two ranks. llama-tiny has 257 words, so 2048 tokens of a step are 128 parts."""
    losses = {}
    for module in (LM, "tests.helpers.train_in_parts"):
        output = tmp_path / module
        arguments = ("--from-scratch", "llama-tiny", "--seq-len", 64, "--batch", 16, "--lr", 1e-3, "--max-steps", 4,
                     "--log-every", 1, "--device", "cpu", "--engine", engine, "--output", output,
                     "--cache", tmp_path / "cache", "--data", DATA / "train.jsonl")  # fmt: skip
        ranks = Ranks(module, arguments, 2, tmp_path)
        assert set(ranks.wait()) == {0}, ranks.all_output()
        losses[module] = [each["loss"] for each in report(output)["history"]]
    whole, parts = losses.values()
    assert len(parts) == 4 and parts == pytest.approx(whole, abs=1e-5)
