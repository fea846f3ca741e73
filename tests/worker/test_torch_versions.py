"""Interfaces of torch that differ between 2.4 and 2.9 or between vendors, by stand-ins for what
other versions have.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from gpuworker.accept.checks import compute
from gpuworker.accept.checks.bad_nodes import search
from gpuworker.accept.kernels import fingerprint, float8, gemm

GPU = torch.device("cuda", 0)


@pytest.fixture(
    params=[False, True], ids=["torch 2.5 and newer", "torch 2.4: with the largest absolute value"]
)
def scaled_mm(request, monkeypatch):
    """The product as one of the versions returns it."""

    def product(a, b, *, scale_a, scale_b, out_dtype, use_fast_accum):
        found = (a.double() @ b.double()).to(out_dtype)
        return (found, found.abs().amax()) if request.param else found

    monkeypatch.setattr(torch, "_scaled_mm", product)


def test_a_product_of_float8_is_verified_with_every_torch(scaled_mm):
    product = gemm.Product("fp8", 128, torch.device("cpu"))
    product.multiply()
    assert product.errors() == [] and product.out.dtype == torch.bfloat16
    assert [
        len(product.out) for _ in fingerprint._float8(torch.ones(16, 16), torch.ones(16, 16))()
    ] == [128, 128]


@pytest.mark.parametrize(
    ("architecture", "stored"),
    [
        ("gfx942:sramecc+:xnack-", torch.float8_e4m3fnuz),
        ("gfx950:sramecc+:xnack-", torch.float8_e4m3fn),
        ("gfx90a", None),
        ("gfx1100", None),
    ],
)
def test_gpus_of_amd_use_the_float8_that_they_have(monkeypatch, architecture, stored):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    properties = SimpleNamespace(gcnArchName=architecture)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 4))
    assert float8.storage(GPU) == stored
    assert compute._has("fp8", GPU) == (stored is not None)


@pytest.mark.parametrize(
    ("capability", "has"), [((8, 0), False), ((8, 9), True), ((9, 0), True), ((12, 0), True)]
)
def test_gpus_of_nvidia_have_float8_from_ada_on(monkeypatch, capability, has):
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert compute._has("fp8", GPU) == has


def test_a_product_in_the_format_of_amd_is_verified(scaled_mm, monkeypatch):
    monkeypatch.setattr(float8, "storage", lambda device: torch.float8_e4m3fnuz)
    product = gemm.Product("fp8", 128, torch.device("cpu"))
    product.multiply()
    assert product.a.dtype == torch.float8_e4m3fnuz and product.errors() == []


@pytest.mark.parametrize("name", ["shutdown", "_shutdown"])
def test_a_group_is_shut_down_by_every_torch(name):
    """torch 2.7 made the method public."""
    calls = []
    search.shut_down(SimpleNamespace(**{name: lambda: calls.append(name)}))
    assert calls == [name]
