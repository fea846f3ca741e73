"""The compute check notices wrong products wherever they are, a slow GPU, and nothing on a healthy
one.
"""

import time

import pytest
import torch

from gpuworker.accept.checks import compute
from gpuworker.accept.kernels import gemm, timing
from gpuworker.accept.kernels.gemm import Product
from gpuworker.judgement import peer_comparison
from gpuworker.judgement.check_spec import Plan
from gpuworker.judgement.report import Evidence
from tests.helpers.cpu_worlds import GPUS, PLANS, measured, verdict_on
from tests.helpers.evidence import failures, not_measured, warnings

DEVICES = [torch.device("cpu")] + [torch.device("cuda", i) for i in range(GPUS)]


@pytest.fixture(autouse=True)
def same_precision_afterwards():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_healthy_devices_pass_with_their_numbers(plan):
    evidence = measured(compute, plan)
    check = verdict_on(compute, evidence, plan)
    assert check.verdict == "PASS", check.reason
    for device in plan.devices:
        speeds = {m.name: m.value for m in evidence.measurements if m.device == device}
        assert {"gemm_fp32"} < set(speeds) and all(value > 0 for value in speeds.values())


def made(kind: str, device: torch.device, size: int = 128) -> Product:
    gemm.precision(kind)
    made = Product(kind, size, device)
    made.multiply()
    return made


def kinds_of(device: torch.device) -> list[str]:
    """On the CPU also the formats that are too slow there for a rehearsal."""
    return [kind for kind in compute.FORMATS if device.type == "cpu" or compute._has(kind, device)]


CASES = [(device, kind) for device in DEVICES for kind in kinds_of(device)]


@pytest.mark.parametrize(
    ("device", "kind"), CASES, ids=[f"{kind}-{device}" for device, kind in CASES]
)
def test_right_products_are_right_and_one_wrong_element_anywhere_is_found(device, kind):
    right = made(kind, device)
    assert right.errors() == []
    for row, column in ((0, 1), (right.size // 2 + 1, 7), (right.size - 1, right.size - 1)):
        for wrong in (float("nan"), float("inf"), 1e4, right.size**0.5 * 40):
            broken = made(kind, device)
            broken.out[row, column] = wrong
            (words,) = [words for words in broken.errors() if "row" in words]
            assert words == f"row {row} and column {column} are wrong", wrong


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_a_later_product_must_have_the_bits_of_the_first(device):
    again = made("fp32", device)
    assert again.errors() == []
    again.multiply()
    assert again.errors() == []
    again.out.view(torch.int32)[5, 6] ^= 1
    again.out.view(torch.int32)[9, 2] ^= 1
    assert again.errors() == ["row 5 and column 2 are wrong (2 rows and 2 columns in all)"]


def test_float32_that_ran_as_tf32_is_told_from_a_fault(monkeypatch):
    honest = made("fp32", torch.device("cpu"), size=1024)
    assert honest.errors() == [] and not honest.is_tf32()
    multiply = Product.multiply

    def rounded(self):  # to 10 bits of mantissa, as in a tensor core
        multiply(self)
        if self.kind == "fp32":
            a, b = (
                (matrix.view(torch.int32) & ~0x1FFF).view(torch.float32)
                for matrix in (self.a, self.b)
            )
            self.out = a @ b

    monkeypatch.setattr(Product, "multiply", rounded)
    forced = made("fp32", torch.device("cpu"), size=1024)
    assert forced.is_tf32() and "sampled products are wrong" in forced.errors()[0]
    evidence = measured(compute, Plan("cpu", 0, seconds=0.1))
    assert (
        failures(evidence) == []
        and "float32 ran as TF32: unset TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
        in not_measured(evidence)[0]
    )
    assert "gemm_bf16" in {m.name for m in evidence.measurements}


def compared(*rates: float, models: tuple[str, ...] = ()) -> Evidence:
    evidence = Evidence()
    for i, rate in enumerate(rates):
        evidence.add_number("gemm_bf16", rate, "TFLOP/s", f"cuda:{i}")
    peer_comparison.problems(evidence, Plan("cuda", len(rates), models=models), "gemm_bf16")
    return evidence


def test_the_slow_gpu_of_a_node_is_named():
    found = compared(700, 705, 698, 500, 702, 690, 701, 699)
    assert failures(found) == ["cuda:3 is slow: gemm_bf16 is 71% of the median of its peers"]
    assert warnings(found) == []
    found = compared(700, 705, 698, 601)
    assert failures(found) == [] and "cuda:3 is slow" in warnings(found)[0]


def test_gpus_are_compared_with_those_of_their_model():
    models = ("H100", "H100", "L4", "L4")
    assert compared(700, 705, 100, 101, models=models).problems == []
    assert failures(compared(700, 705, 100, 60, models=models))[0].startswith("cuda:3 is slow")
    assert compared(700, 100, models=("H100", "L4")).problems == []


@pytest.mark.parametrize(
    ("times", "verdict"),
    [([1.05] + [1.0] * 9, ""), ([3.0] + [1.0] * 9, "WARN"), ([2.0] * 4 + [1.0] * 6, "FAIL")],
    ids=["healthy", "a call of ten", "four calls of ten"],
)
def test_a_gpu_that_stalls_now_and_then_is_named_although_its_median_is_healthy(times, verdict):
    found = Evidence()
    taken = {torch.device("cuda", 0): [1.0] * 10, torch.device("cuda", 1): times}
    peer_comparison.record(found, "gemm_bf16", "TFLOP/s", 1.0, taken, "cuda", True)
    peer_comparison.problems(found, Plan("cuda", 2))
    told = [(problem.verdict, problem.kind, problem.parts) for problem in found.problems]
    assert told == [(verdict, "stall", ["cuda:1"])] * bool(verdict)


def test_a_gpu_that_is_not_there_is_not_measured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 7)
    plan = Plan("cuda", 8)
    assert [str(device) for device in timing.test_devices(plan)] == plan.devices[:7]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    check = verdict_on(compute, compute.measure(plan), plan)
    assert check.verdict == "INCOMPLETE" and "cuda:7: no gemm_fp32" in check.reason


def test_an_error_names_its_device():
    def work(device):
        if device.index == 1:
            raise ValueError("out of order")

    with pytest.raises(RuntimeError, match=r"^cpu:1: ValueError: out of order"):
        timing.run_on_all([torch.device("cpu", 0), torch.device("cpu", 1)], work)


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_seconds_are_seconds(device):
    matrix = torch.ones(64, 64, device=device)
    quick = min(timing.seconds(lambda: matrix @ matrix, device, 5))
    slow = timing.seconds(lambda: timing.hold_stream(device, 0.05), device, 3)
    assert 0 < quick < 0.02 < min(slow)


def test_time_that_others_had_the_cpu_does_not_count():
    """A call that is delayed without using its core, as by other programs or a CPU limit, takes no
    longer.
    """
    (waited,) = timing.seconds(lambda: time.sleep(0.25), torch.device("cpu"), 1)
    assert waited < 0.1


@pytest.mark.parametrize(
    ("waited", "counted"), [([False] * 4, 4), ([True, False, False, True], 2), ([True] * 4, 4)]
)
def test_a_call_for_which_the_gpu_waited_does_not_count(monkeypatch, waited, counted):
    """The launch of the host would be timed. Where it always waits, there is no better number."""
    waits = iter(waited)

    class Event:
        def __init__(self, enable_timing):
            self.query = lambda: next(waits)

        def record(self, stream):
            pass

        def elapsed_time(self, end):
            return 1.5

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "stream")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(timing, "hold_stream", lambda *_: None)
    assert timing.seconds(lambda: None, torch.device("cuda", 0), 4) == [0.0015] * counted


def test_a_long_level_measures_until_its_time_is_over(monkeypatch):
    monkeypatch.setattr(compute, "REHEARSAL_S", 3.0)
    start = time.monotonic()
    assert measured(compute, Plan("cpu", 0, "burn-in", seconds=3.0)).measurements
    assert time.monotonic() - start > 1.5
