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

from gpuworker.judgement import peer_comparison
from gpuworker.judgement.check_spec import Measure, Plan, Spec
from gpuworker.judgement.majority import majority
from gpuworker.judgement.report import Evidence

SPEC = Spec(
    tag="REPEAT",
    seconds={"quick": 5, "full": 40, "burn-in": 600, "prolog": 2},
    measures={  # a count, of which more than REPEATS proves nothing more
        "repeats": Measure(
            "repeats", "number of times that the sequence ran", noise=math.inf, meaningful=(2, 1e6)
        )
    },
    prolog=("repeats",),
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
REPEATS = {"quick": 20, "full": 100, "burn-in": 100, "prolog": 5}


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

    evidence.facts["hash_group"] = {}
    for device in devices:
        name = str(device)
        label = peer_comparison.report_name(name)
        usual = _repeats(name, seen[device], evidence)
        if usual["integer"] != expected:
            evidence.fail("wrong-product", f"{name}: integer arithmetic gave a wrong result", name)
        if label:
            evidence.add_number("repeats", repeats, "repeats", label)
        evidence.facts["hash_group"][label or name] = fingerprint.group(device, size)
        evidence.hashes |= {f"{kind} {label or name}": value for kind, value in usual.items()}
    return evidence


def problems(evidence: Evidence, plan: Plan) -> None:
    for number in evidence.measurements:
        if number.name == "repeats" and number.value < REPEATS[plan.level]:
            words = f"{number.device}: {number.value:g} repeats of {REPEATS[plan.level]}"
            evidence.incomplete("missing", words, number.device, measure=number.name)
    kinds: dict[tuple[str, str], str] = {}  # device and hash -> format
    votes: dict[tuple[str, str], dict[str, str]] = {}  # format and group -> device -> hash
    for key, value in evidence.hashes.items():
        kind, _, device = key.partition(" ")
        group = evidence.facts["hash_group"].get(device, "")
        votes.setdefault((kind, group), {})[device] = value
        if not HASH.fullmatch(value):
            words = f"{device}: the hash of {kind} is not a SHA-256: {value!r:.80}"
            evidence.incomplete("contradiction", words, device)
        elif (other := kinds.setdefault((device, value), kind)) != kind:
            words = f"{device}: {other} and {kind} have one hash, which no two computations have"
            evidence.incomplete("contradiction", words, device)
    for (kind, _), hashes in votes.items():
        _, agree, odd = majority(hashes)
        of_node = {"measure": kind, "compared": True}  # the fleet may know better
        if agree:
            for device in odd:
                words = f"{device}: {kind} has other bits than {agree} of {len(hashes)} GPUs"
                evidence.fail("wrong-bits", words, device, **of_node)
        else:
            words = f"{' and '.join(odd)} have different bits of {kind}, without a majority"
            evidence.fail("no-majority", words, *odd, **of_node)


def _repeats(device: str, seen: dict[str, list[str]], evidence: Evidence) -> dict[str, str]:
    """The usual hash of each format. Adds the repeats that differ from it."""
    found = {}
    for kind, all_ in seen.items():
        found[kind], same = Counter(all_).most_common(1)[0]
        differing = [number for number, value in enumerate(all_, 1) if value != found[kind]]
        if differing:
            words = f"{device}: repeat {differing[0]} of {kind} gave other bits than {same} of its"
            more = f" ({len(differing)} such repeats)" if len(differing) > 1 else ""
            evidence.fail("wrong-bits", f"{words} {len(all_)} repeats{more}", device)
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
