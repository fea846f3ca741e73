"""The small training: it learns, and it is the same every time."""

import pytest
import torch

from gpuworker.accept.training import tiny_training

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


def test_it_learns_and_repeats_bit_for_bit():
    first, last = tiny_training(CPU)
    assert last < 0.7 * first
    assert tiny_training(CPU) == (first, last)


def test_ranks_see_different_samples():
    assert tiny_training(CPU, steps=10, rank=0) != tiny_training(CPU, steps=10, rank=1)
