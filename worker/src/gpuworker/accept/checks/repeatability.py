"""Repeated work gives the same bits on every GPU, which reveals silent data corruption.

A fixed sequence per number format (product, elementwise functions, row-wise softmax, sums in fixed order) runs many
times on every GPU, and every bit of its results is hashed. The hashes are compared between the repeats of a device,
between the GPUs of one model in the node (the majority identifies the outlier) and, by accept-report, between the
nodes within facts["hash_group"]. Integers that float32 represents exactly, and 64-bit integer arithmetic, must have
the correct result.

The inputs are equal everywhere: 32-bit integers of a seeded Mersenne Twister, scaled by a power of two.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter

from gpuworker.accept.check_spec import Evidence, Measure, Plan, Spec
from gpuworker.accept.report import Measurement

SPEC = Spec(
    tag="REPEAT",
    seconds={"quick": 5, "full": 40, "burn-in": 600},
    measures={  # a count, of which more than REPEATS proves nothing more
        "repeats": Measure("repeats", "number of times that the sequence ran", noise=math.inf, meaningful=(2, 1e6))
    },
    fingerprints=("fp32", "integer"),
    faults={
        "flipped-bit-repeat": r"(cpu|cuda):\d+: repeat 3 of bf16 gave other bits than \d+ of its \d+ repeats",
        "odd-device": r"(cpu|cuda):\d+: fp32 has other bits than \d+ of \d+ GPUs",
        "wrong-integers": r"(cpu|cuda):\d+: integer arithmetic gave a wrong result",
    },
)
HASH = re.compile("[0-9a-f]{64}")
# Rows and columns of the inputs: every multiprocessor of a GPU gets a tile of the product.
SIZE = {"cuda": 4096, "cpu": 128}
REPEATS = {"quick": 20, "full": 100, "burn-in": 100}


def measure(plan: Plan) -> Evidence:
    from gpuworker.accept.kernels import fingerprint, timing

    evidence = Evidence()
    fingerprint.deterministic()
    devices = timing.test_devices(plan, rehearsal=3)
    if not devices:
        return evidence
    size = SIZE[plan.device]
    sequences = timing.run_on_all(devices, lambda device: fingerprint.sequences(device, size))
    seen: dict = {device: {kind: [] for kind in sequences[device]} for device in devices}
    expected = fingerprint.expected_integers(size)
    start, repeats = time.monotonic(), 0

    def repeat(device) -> None:
        for kind, sequence in sequences[device].items():
            results = sequence()
            if device == devices[-1]:
                _break(kind, results, repeats, plan)
            seen[device][kind].append(fingerprint.digest(results))

    loop = plan.level == "burn-in" and plan.device == "cuda"
    while repeats < REPEATS[plan.level] or (loop and time.monotonic() - start < 0.9 * plan.seconds):
        timing.run_on_all(devices, repeat)
        repeats += 1

    usual = {
        device: {kind: Counter(all_).most_common(1)[0][0] for kind, all_ in seen[device].items()} for device in devices
    }
    for device in devices:
        evidence.failures += _repeats(device, seen[device], usual[device])
        if usual[device]["integer"] != expected:
            evidence.failures.append(f"{device}: integer arithmetic gave a wrong result")
    evidence.failures += _compare_devices(usual, fingerprint.model)
    for device in devices:
        if label := timing.report_name(device):
            evidence.measurements.append(Measurement("repeats", repeats, "repeats", label))
            evidence.hashes |= {f"{kind} {label}": value for kind, value in usual[device].items()}
    evidence.facts["hash_group"] = fingerprint.group(devices[0], size)
    return evidence


def problems(evidence: Evidence, plan: Plan) -> None:
    for number in evidence.measurements:
        if number.name == "repeats" and number.value < REPEATS[plan.level]:
            evidence.not_measured.append(f"{number.device}: {number.value:g} repeats of {REPEATS[plan.level]}")
    of_device: dict[str, dict[str, str]] = {}
    for key, value in evidence.hashes.items():
        kind, _, device = key.partition(" ")
        if not HASH.fullmatch(value):
            evidence.not_measured.append(f"{device}: the hash of {kind} is not a SHA-256: {value!r:.80}")
        elif (other := of_device.setdefault(device, {}).setdefault(value, kind)) != kind:
            evidence.not_measured.append(f"{device}: {other} and {kind} have one hash, which no two computations have")


def _repeats(device, seen: dict[str, list[str]], usual: dict[str, str]) -> list[str]:
    """Repeats of one device that differ from most of its repeats."""
    found = []
    for kind, all_ in seen.items():
        differing = [number for number, value in enumerate(all_, 1) if value != usual[kind]]
        if differing:
            same = len(all_) - len(differing)
            more = f" ({len(differing)} such repeats)" if len(differing) > 1 else ""
            found.append(
                f"{device}: repeat {differing[0]} of {kind} gave other bits than {same} of its {len(all_)} repeats"
                f"{more}"
            )
    return found


def _compare_devices(usual: dict, model_of) -> list[str]:
    """Devices whose repeats agree and differ from the others of their model."""
    models: dict[str, list] = {}
    for device in usual:
        models.setdefault(model_of(device), []).append(device)
    found = []
    for devices in models.values():
        for kind in usual[devices[0]]:
            votes = Counter(usual[device][kind] for device in devices)
            most, count = votes.most_common(1)[0]
            if 2 * count > len(devices):
                outliers = [device for device in devices if usual[device][kind] != most]
                found += [f"{device}: {kind} has other bits than {count} of {len(devices)} GPUs" for device in outliers]
            elif len(votes) > 1:
                names = " and ".join(map(str, devices))
                found.append(f"{names} have different bits of {kind}, without a majority")
    return found


def _break(kind: str, results: list, repeats: int, plan: Plan) -> None:
    """Inject a flipped bit into the last device's result: in its third repeat, or in all."""
    once = plan.injected("flipped-bit-repeat") and kind == "bf16" and repeats == 2
    always = plan.injected("odd-device") and kind == "fp32"
    if once or always:
        import torch

        results[0].view(torch.int16)[5, 7] ^= 1
    if plan.injected("wrong-integers") and kind == "integer":
        results[0][5, 7] += 1
