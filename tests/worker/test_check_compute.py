"""The compute check notices one wrong product."""

import math

import pytest
import torch

from gpuworker.accept.checks import compute
from gpuworker.accept.registry import Plan

pytestmark = pytest.mark.slow

CPU = Plan("cpu", 0)


def test_compute_passes_on_right_products():
    found = compute.measure(CPU, size=256, repeats=2)
    (speed,) = found.measurements
    assert (found.wrong, speed.unit, speed.device) == ([], "TFLOP/s", "cpu")
    assert speed.value > 0


@pytest.mark.parametrize("wrong", [lambda x: x + 1, lambda x: math.nan, lambda x: math.inf, lambda x: 1.001 * x])
def test_compute_notices_one_wrong_product(monkeypatch, wrong):
    healthy = torch.Tensor.__matmul__

    def faulty(a, b):
        product = healthy(a, b)
        if product.dtype == torch.float32:  # the yardstick is the product in float64
            product[64, 3] = wrong(product[64, 3].item())
        return product

    monkeypatch.setattr(torch.Tensor, "__matmul__", faulty)
    found = compute.measure(CPU, size=256, repeats=2)
    assert found.wrong == ["cpu: 1 of 1024 sampled products are wrong"]
