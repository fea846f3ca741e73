"""The memory check finds one wrong bit and says where, finds slow memory, and nothing on a healthy
device.
"""

import re

import pytest
import torch

from gpuworker.accept.checks import memory
from gpuworker.accept.kernels import memory_pattern
from tests.helpers.cpu_worlds import GPUS, PLANS, measured, verdict_on

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
        if (
            first == 3 * MIB // 8 and calls.count(first) == 1
        ):  # written wrong, then compared with the right one
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
    assert (
        "byte 0x0 of the tested memory reads 0x0000000000300000 where 0x0000000000000000 was"
        in wrong[0]
    )
