"""The small training and the transformer step: they learn, they repeat, and the figures are right."""

import pytest
import torch

from gpuworker.accept.checks import training as check
from gpuworker.accept.checks.training import training_steps
from gpuworker.accept.kernels.tiny_classifier import tiny_training
from gpuworker.judgement.check_spec import Plan
from tests.helpers.cpu_worlds import measured
from tests.helpers.evidence import failures

CPU = torch.device("cpu")
PLAN = Plan("cuda", 2)


@pytest.mark.slow
def test_it_learns_and_repeats_bit_for_bit():
    first, last = tiny_training(CPU)
    assert last < 0.7 * first
    assert tiny_training(CPU) == (first, last)


def test_flop_of_a_token_by_hand():
    """One block of width 4: 12·4² weights in matrices, then norms and biases, a head of 4·10,
    attention of 12·1·4·8.
    """
    shape = training_steps.Shape(layers=1, width=4, heads=2, length=8, batch=1, words=10)
    norms_and_biases = 2 * (4 + 4) + 12 + 4 + 16 + 4
    assert (
        training_steps.flop_per_token(training_steps.Transformer(shape), shape)
        == 6 * (12 * 16 + norms_and_biases + 40) + 12 * 4 * 8
    )


def gpus(count: int, step_s: float) -> list[dict]:
    fixed = {
        "model": "NVIDIA H100 80GB HBM3",
        "losses": [1.0, 0.1],
        "tokens": 1000,
        "flop_per_token": 989e9,
    }
    return [
        {
            "label": f"rank {rank}",
            "device": f"cuda:{rank}",
            "steps_s": [step_s - 0.1 * rank],
            **fixed,
        }
        for rank in range(count)
    ]


def values(found) -> dict[str, float]:
    return {f"{m.name} {m.device}".strip(): m.value for m in found.measurements}


def test_mfu_of_gpus():
    """1000 tokens of 989 GFLOP in 2 s of the slowest GPU of 989 TFLOP/s: half of its peak."""
    found = values(training_steps.evidence(gpus(2, step_s=2.0), PLAN, 1))
    assert found["mfu cuda:1"] == pytest.approx(0.5)
    assert found["tokens_per_s cuda:0"] == pytest.approx(500)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_nan_in_the_input_of_one_rank_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    found = measured(check, Plan("cpu", 0, scratch=tmp_path, inject="nan-loss"))
    (reason,) = failures(found)
    assert reason.startswith("rank 1 (")
    assert "loss went from 0." in reason and reason.endswith(" to nan")
    assert values(found)["tokens_per_s cpu"] > 0
