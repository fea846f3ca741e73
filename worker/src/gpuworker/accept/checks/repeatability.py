"""Repeated work gives the same bits on every GPU, which reveals silent data corruption.

A fixed sequence per number format (product, elementwise functions, row-wise softmax, sums in fixed
order) runs many times on every GPU, and every bit of its results is hashed. The hashes are compared
between the repeats of a device, between the GPUs of one model in the node (the majority identifies
the outlier) and, by accept-report, between the nodes within facts["hash_group"]. Integers that
float32 represents exactly, and 64-bit integer arithmetic, must have the correct result.

The inputs are equal everywhere: 32-bit integers of a seeded Mersenne Twister, scaled by a power of
two.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter

from gpuworker.accept import peer_comparison
from gpuworker.accept.check_spec import Measure, Plan, Spec
from gpuworker.judgement.report import Evidence, Measurement

SPEC = Spec(
    tag="REPEAT",
    seconds={"quick": 5, "full": 40, "burn-in": 600},
    measures={  # a count, of which more than REPEATS proves nothing more
        "repeats": Measure(
            "repeats", "number of times that the sequence ran", noise=math.inf, meaningful=(2, 1e6)
        )
    },
    fingerprints=("fp32", "integer"),
    faults={
        "flipped-bit-repeat": "wrong-bits",
        "odd-device": "wrong-bits",
        "wrong-integers": "wrong-product",
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
        device: {kind: Counter(all_).most_common(1)[0][0] for kind, all_ in seen[device].items()}
        for device in devices
    }
    for device in devices:
        _repeats(device, seen[device], usual[device], evidence)
        if usual[device]["integer"] != expected:
            evidence.fail(
                "wrong-product", f"{device}: integer arithmetic gave a wrong result", device
            )
    _compare_devices(usual, fingerprint.model, evidence)
    for device in devices:
        if label := peer_comparison.report_name(str(device)):
            evidence.measurements.append(Measurement("repeats", repeats, "repeats", label))
            evidence.hashes |= {f"{kind} {label}": value for kind, value in usual[device].items()}
    groups = {
        peer_comparison.report_name(str(device)): fingerprint.group(device, size)
        for device in devices
    }
    evidence.facts["hash_group"] = {label: group for label, group in groups.items() if label}
    return evidence


def problems(evidence: Evidence, plan: Plan) -> None:
    for number in evidence.measurements:
        if number.name == "repeats" and number.value < REPEATS[plan.level]:
            words = f"{number.device}: {number.value:g} repeats of {REPEATS[plan.level]}"
            evidence.incomplete("missing", words, number.device, measure=number.name)
    of_device: dict[str, dict[str, str]] = {}
    for key, value in evidence.hashes.items():
        kind, _, device = key.partition(" ")
        if not HASH.fullmatch(value):
            words = f"{device}: the hash of {kind} is not a SHA-256: {value!r:.80}"
            evidence.incomplete("contradiction", words, device)
        elif (other := of_device.setdefault(device, {}).setdefault(value, kind)) != kind:
            words = f"{device}: {other} and {kind} have one hash, which no two computations have"
            evidence.incomplete("contradiction", words, device)


def _repeats(device, seen: dict[str, list[str]], usual: dict[str, str], evidence: Evidence) -> None:
    """Add repeats of one device that differ from most of its repeats."""
    for kind, all_ in seen.items():
        differing = [number for number, value in enumerate(all_, 1) if value != usual[kind]]
        if differing:
            same = len(all_) - len(differing)
            more = f" ({len(differing)} such repeats)" if len(differing) > 1 else ""
            words = f"repeat {differing[0]} of {kind} gave other bits than {same} of its {len(all_)} repeats{more}"
            evidence.fail("wrong-bits", f"{device}: {words}", device)


def _compare_devices(usual: dict, model_of, evidence: Evidence) -> None:
    """Add devices whose repeats agree and differ from the others of their model."""
    models: dict[str, list] = {}
    for device in usual:
        models.setdefault(model_of(device), []).append(device)
    for devices in models.values():
        for kind in usual[devices[0]]:
            votes = Counter(usual[device][kind] for device in devices)
            most, count = votes.most_common(1)[0]
            if 2 * count > len(devices):
                outliers = [device for device in devices if usual[device][kind] != most]
                for device in outliers:
                    words = f"{device}: {kind} has other bits than {count} of {len(devices)} GPUs"
                    evidence.fail("wrong-bits", words, device)
            elif len(votes) > 1:
                names = " and ".join(map(str, devices))
                words = f"{names} have different bits of {kind}, without a majority"
                evidence.fail("no-majority", words, *devices)


def _break(kind: str, results: list, repeats: int, plan: Plan) -> None:
    """Inject a flipped bit into the last device's result: in its third repeat, or in all."""
    once = plan.injected("flipped-bit-repeat") and kind == "bf16" and repeats == 2
    always = plan.injected("odd-device") and kind == "fp32"
    if once or always:
        import torch

        results[0].view(torch.int16)[5, 7] ^= 1
    if plan.injected("wrong-integers") and kind == "integer":
        results[0][5, 7] += 1
