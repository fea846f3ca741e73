"""Not one changed bit stays unseen, and the device that is odd is named."""

import random
import re

import pytest
import torch

from gpuworker.accept.checks import repeatability
from gpuworker.accept.kernels import fingerprint
from gpuworker.judgement.check_spec import Plan
from gpuworker.judgement.report import Evidence
from tests.helpers.cpu_worlds import GPUS, PLANS, measured, verdict_on
from tests.helpers.evidence import failures

DEVICES = [torch.device("cpu")] + [torch.device("cuda", i) for i in range(GPUS)]


@pytest.fixture(autouse=True)
def same_settings_afterwards(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # so that it is removed afterwards
    before = torch.get_deterministic_debug_mode(), torch.get_float32_matmul_precision()
    yield
    torch.set_deterministic_debug_mode(before[0])
    torch.set_float32_matmul_precision(before[1])


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_healthy_devices_repeat_and_leave_their_fingerprints(plan):
    evidence = measured(repeatability, plan)
    check = verdict_on(repeatability, evidence, plan)
    assert check.verdict == "PASS", check.reason
    assert {(m.name, m.device, m.value) for m in evidence.measurements} == {
        ("repeats", d, 20) for d in plan.devices
    }
    for device in plan.devices:
        assert {f"{kind} {device}" for kind in ("integer", "fp32", "bf16")} <= set(evidence.hashes)
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in evidence.hashes.values())
    (group, *_) = evidence.facts["hash_group"].values()
    assert torch.__version__ in group and "unknown" not in group, group


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_every_single_bit_counts(device, dtype):
    torch.manual_seed(1)
    values = (torch.randn(24, 64, device=device) * 1000).to(dtype)
    before = fingerprint.digest([values])
    chance = random.Random(7)
    for _ in range(200):
        changed = values.clone()
        octets = changed.view(torch.uint8)
        row, column, bit = (
            chance.randrange(octets.shape[0]),
            chance.randrange(octets.shape[1]),
            chance.randrange(8),
        )
        octets[row, column] ^= 1 << bit
        assert fingerprint.digest([changed]) != before, (row, column, bit)
    assert fingerprint.digest([values.clone()]) == before


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_integers_have_the_one_right_result_on_every_machine(device):
    right = fingerprint.expected_integers(128)
    assert right == "50664495b2bfbb0c5eef0da1082553187e52a7d905ece2082113c40859cf6956"
    assert fingerprint.digest(fingerprint.sequences(device, 128)["integer"]()) == right


def test_the_sequence_of_float8_repeats():
    a, b = (matrix / 64 for matrix in fingerprint._inputs(64))
    sequence = fingerprint._float8(a, b)
    product, sums = sequence()
    exact = a.to(torch.float8_e4m3fn).float() @ b.to(torch.float8_e4m3fn).float().t()
    torch.testing.assert_close(product.float(), exact, rtol=0.01, atol=0.01)
    assert fingerprint.digest([product, sums]) == fingerprint.digest(sequence())


DEVICE = [torch.device("cuda", i) for i in range(8)]


def voted(*bits: str, models: str = "XXXXXXXX") -> list[str]:
    found = Evidence(facts={"hash_group": {f"cuda:{i}": model for i, model in enumerate(models)}})
    found.hashes = {
        f"bf16 {device}": value * 64 for device, value in zip(DEVICE, bits, strict=False)
    }
    repeatability.problems(found, Plan("cuda", 8))
    return failures(found)


def test_the_majority_names_the_odd_gpu():
    assert voted(*"aaaaabaa") == ["cuda:5: bf16 has other bits than 7 of 8 GPUs"]
    assert [words[:6] for words in voted(*"abacaaaa")] == ["cuda:1", "cuda:3"]
    assert voted(*"aaaaaaaa") == voted("a") == []


def test_without_a_majority_all_are_named():
    assert voted("a", "b") == ["cuda:0 and cuda:1 have different bits of bf16, without a majority"]
    assert "cuda:0 and cuda:1 and cuda:2 and cuda:3" in voted(*"aabb")[0]


def test_gpus_of_different_models_need_not_agree():
    assert voted(*"aabb", models="XXYY") == []


def test_a_repeat_that_differs_is_named():
    seen = {"bf16": ["a", "a", "b", "a", "c"], "fp32": ["d"] * 5}
    found = Evidence()
    assert repeatability._repeats("cuda:2", seen, found) == {"bf16": "a", "fp32": "d"}
    (words,) = failures(found)
    assert (
        words == "cuda:2: repeat 3 of bf16 gave other bits than 3 of its 5 repeats (2 such repeats)"
    )
