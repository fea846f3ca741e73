"""The memory check finds one wrong bit and says where, finds slow memory, and nothing on a healthy device."""

import re

import pytest
import torch

from gpuworker.accept import registry
from gpuworker.accept.check_spec import Plan
from gpuworker.accept.checks import memory
from gpuworker.accept.kernels import memory_pattern
from gpuworker.accept.limits import Limits
from gpuworker.accept.verdict import judge_check
from gpuworker.judgement.report import Evidence, Measurement
from tests.helpers.cpu_worlds import COMPARING_PLANS, GPUS, PLANS, measured, verdict_on
from tests.helpers.evidence import kinds

FAULTS = memory.SPEC.faults
DEVICES = [torch.device("cpu")] + [torch.device("cuda", i) for i in range(GPUS)]
MIB = 1 << 20


@pytest.fixture
def small(monkeypatch):
    """Seven chunks of a MiB, so that nothing takes long."""
    monkeypatch.setattr(memory_pattern, "CHUNK_BYTES", MIB)
    monkeypatch.setattr(memory, "REHEARSAL_BYTES", 7 * MIB)
    monkeypatch.setattr(memory, "REHEARSAL_S", 0.2)
    monkeypatch.setitem(memory.ARRAY_BYTES, "cpu", 2 * MIB)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_healthy_memory_passes_with_its_numbers(plan):
    evidence = measured(memory, plan)
    check = verdict_on(memory, evidence, plan)
    assert check.verdict == "PASS", check.reason
    for device in plan.devices:
        found = {m.name: (m.value, m.unit) for m in evidence.measurements if m.device == device}
        assert found["memory_copy"][0] > 0.1 and found["memory_triad"][0] > 0.1
        assert found["memory_tested"][0] >= 0.0624 and found["memory_tested"][1] == "GiB"


@pytest.mark.parametrize("plan", COMPARING_PLANS.values(), ids=COMPARING_PLANS)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_injected_fault_is_told(small, plan, fault):
    plan = Plan(plan.device, plan.gpus, seconds=plan.seconds, inject=fault)
    check = verdict_on(memory, memory.measure(plan), plan)
    assert check.verdict == "FAIL" and FAULTS[fault] in kinds(check), check


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_all_of_it_is_tested_and_right(small, device):
    assert memory_pattern.test(device, 7 * MIB) == (7 * MIB, [])


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("name", memory_pattern.PATTERNS)
def test_a_wrong_bit_is_told_with_its_place_and_both_words(small, monkeypatch, device, name):
    """A cell that loses bit 40 after it was written, for every pattern that has it set there."""
    address = 3 * MIB + 8 * 1001
    right = memory_pattern.PATTERNS[name](address // 8, 1, device)
    fill, calls = memory_pattern.PATTERNS[name], []

    def lossy(first, words, where):
        values = fill(first, words, where)
        calls.append(first)
        if first == 3 * MIB // 8 and calls.count(first) == 1:  # written wrong, then compared with the right one
            values[1001] ^= 1 << 40
        return values

    monkeypatch.setitem(memory_pattern.PATTERNS, name, lossy)
    _, (words,) = memory_pattern.test(device, 7 * MIB)
    assert words.startswith(f"pattern {name}: byte 0x{address:x} of the tested memory reads 0x")
    assert words.endswith("(bit 40), 1 wrong words in all")
    seen, written = (int(number, 16) for number in re.findall(r"0x([0-9a-f]{16})", words))
    assert seen ^ written == 1 << 40
    if name != "random":  # which depends on where its chunk begins
        assert written == right.item() % 2**64


def test_two_addresses_that_reach_one_cell_are_found(small, monkeypatch):
    cell = torch.zeros(MIB // 8, dtype=torch.int64)
    monkeypatch.setattr(memory_pattern.torch, "empty", lambda *_, **__: cell)
    _, wrong = memory_pattern.test(torch.device("cpu"), 4 * MIB)
    assert "byte 0x0 of the tested memory reads 0x0000000000300000 where 0x0000000000000000 was" in wrong[0]


def test_a_lot_of_wrong_memory_is_told_in_few_words(small, monkeypatch):
    fill, calls = memory_pattern.PATTERNS["random"], []

    def forgetful(first, words, where):
        calls.append(first)
        return fill(first, words, where) * (len(calls) > 7)  # all zeros are written

    monkeypatch.setitem(memory_pattern.PATTERNS, "random", forgetful)
    _, wrong = memory_pattern.test(torch.device("cpu"), 7 * MIB)
    (words,) = wrong
    assert words.startswith("pattern random: ") and words.endswith(f" {7 * MIB // 8} wrong words in all")


def test_patterns_differ_everywhere_and_cover_both_values_of_every_bit():
    words = {name: fill(1 << 20, 4096, torch.device("cpu")) for name, fill in memory_pattern.PATTERNS.items()}
    assert torch.equal(words["address"], ~words["inverted address"])
    assert words["random"].unique().numel() > 4090
    assert not torch.equal(words["random"], memory_pattern.PATTERNS["random"](1 << 21, 4096, torch.device("cpu")))


@pytest.mark.parametrize(
    ("copy", "triad", "verdict"), [(2900, 2900, "PASS"), (1500, 2900, "FAIL"), (2900, 2133, "FAIL")]
)
def test_the_figures_of_the_model_judge(copy, triad, verdict):
    numbers = {"memory_copy": copy, "memory_triad": triad, "memory_tested": 70}
    evidence = Evidence(
        [Measurement(name, value, memory.SPEC.measures[name].unit, "cuda:0") for name, value in numbers.items()],
        {"memory_gib": {"cuda:0": 79.2}, "models": {"cuda:0": "NVIDIA H100 80GB HBM3"}},
    )
    limits = Limits(("NVIDIA H100 80GB HBM3",))
    check = judge_check(registry.node_checks()["memory"], evidence, limits, Plan("cuda", 1))
    assert check.verdict == verdict, check.reason


def test_gpus_that_are_not_there_leave_the_check_incomplete(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    plan = Plan("cuda", 2)
    assert verdict_on(memory, memory.measure(plan), plan).verdict == "INCOMPLETE"
