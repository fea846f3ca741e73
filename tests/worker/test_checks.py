"""Every check notices the fault it is there for."""

import math

import pytest
import torch
from processes import FAULTS, environment

from gpuworker.accept import checks
from gpuworker.accept.checks import Plan

pytestmark = pytest.mark.slow

CPU = Plan("cpu", 0)


def test_missing_gpus_are_told_from_too_few(monkeypatch):
    none = checks.environment(Plan("cuda", 8))
    assert (none.verdict, none.reason) == ("INCOMPLETE", "torch sees no GPU, 8 expected")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 7)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "H200")
    few = checks.environment(Plan("cuda", 8))
    assert (few.verdict, few.reason) == ("FAIL", "torch sees 7 GPUs, 8 expected")
    assert (few.facts["gpus_seen"], few.facts["gpus_expected"]) == (7, 8)


def test_compute_passes_on_right_products():
    found = checks.compute(CPU, size=256, repeats=2)
    (speed,) = found.measurements
    assert (found.verdict, found.reason, speed.unit, speed.limit) == ("PASS", "", "GFLOP/s", None)
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
    found = checks.compute(CPU, size=256, repeats=2)
    assert (found.verdict, found.reason) == ("FAIL", "cpu: 1 of 1024 sampled products are wrong")


def test_compute_below_its_limit_fails():
    found = checks.compute(Plan("cpu", 0, min_compute_gflops=1e9), size=256, repeats=2)
    (speed,) = found.measurements
    assert found.verdict == "FAIL"
    assert "GFLOP/s is below the limit of 1e+09 (limits.computeGflops)" in found.reason
    assert (speed.limit, speed.limit_source) == (1e9, "limits.computeGflops")
    assert speed.margin < 1


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [
        ((1.4, 0.1), "PASS"),
        ((1.4, 0.0), "PASS"),
        ((1.4, 1.3), "FAIL"),
        ((1.4, math.nan), "FAIL"),
        ((math.nan, math.nan), "FAIL"),
        ((1.4, math.inf), "FAIL"),
    ],
)
def test_training_must_learn(monkeypatch, losses, verdict):
    monkeypatch.setattr(checks, "tiny_training", lambda _: losses)
    found = checks.training(CPU)
    assert found.verdict == verdict
    assert bool(found.reason) == (verdict == "FAIL")
    assert all(math.isfinite(measurement.value) for measurement in found.measurements)


@pytest.fixture
def fault(monkeypatch):
    """Breaks rank 1 of every world that is started from here."""

    def begin(name: str) -> None:
        source = environment()["PYTHONPATH"]
        for key, value in environment(PYTHONPATH=f"{FAULTS}:{source}", FAULT=name).items():
            monkeypatch.setenv(key, value)

    return begin


def test_collectives_notice_one_wrong_element(fault, capfd):
    fault("flip")
    found = checks.collectives(CPU)
    assert (found.verdict, found.reason) == ("FAIL", "all-reduce gave wrong sums in 5 of 5 rounds")
    printed = capfd.readouterr()
    assert "exitcode  : 3" in printed.err
    assert printed.out.count("ok=false") == 2, "every rank must know of the wrong one"


def test_collectives_of_a_world_that_broke_are_no_pass(fault):
    fault("crash")
    found = checks.collectives(CPU)
    assert found.verdict == "INCOMPLETE"
    assert found.reason.startswith("torchrun exited 1: ")
    assert "exitcode: 9" in found.reason
