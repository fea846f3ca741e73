"""DDP trains as one process does: same gradients, same parameters on every rank, same end after a resume.

Across nodes: ddp-launch -m gpuworker.accept.ddp_tests --correctness
"""

from __future__ import annotations

import math
import sys
from collections import Counter

from gpuworker.accept.check_spec import WORLD, Measure, Plan, Spec
from gpuworker.judgement.report import Evidence, Measurement

# the order of additions may cause less; of the largest gradient
TOLERANCE = 1e-10
NAMED = 8  # ranks of a finding
SPEC = Spec(
    tag="DDP",
    seconds={"quick": 4, "full": 10, "burn-in": 60},
    process=WORLD,
    across_nodes="DDP against one process; checkpoint and resume",
    measures={
        "gradient_error": Measure(
            "x",
            "largest difference from the gradient of one process, float64",
            better="lower",
            noise=TOLERANCE,
            meaningful=(sys.float_info.epsilon, TOLERANCE),
            each="node",
        )
    },
    faults={
        "flipped-gradient": "own-gradient",
        "nan-gradient": "own-gradient",
        "diverged-parameter": "diverged",
        "damaged-checkpoint": "volume-bytes",
    },
)


def measure(plan: Plan) -> Evidence:
    from gpuworker.accept.checks.correctness import ddp_reference
    from gpuworker.accept.distributed import local_world

    steps = {"quick": 5, "full": 50, "burn-in": 500}[plan.level]
    return evidence(local_world.run(plan, ddp_reference.run, folder=str(plan.scratch), steps=steps))


def problems(evidence: Evidence, plan: Plan) -> None:
    """Of numbers alone: which rank it is, the measuring check names."""
    if reason := evidence.inapplicable.get("gradient_error"):
        evidence.fail("shared-gradient", f"no gradient_error: {reason}")
    for number in evidence.measurements:
        if number.name == "gradient_error" and number.value > TOLERANCE:
            words = f"a gradient differs from that of one process by {number.value:.3g}"
            evidence.fail("shared-gradient", words)


def measure_world(context, plan: Plan) -> Evidence:
    from gpuworker.accept.checks.correctness import ddp_reference

    plan.scratch.mkdir(parents=True, exist_ok=True)
    results = context.gather("correctness", ddp_reference.run(context, str(plan.scratch)))
    return evidence(results) if results else Evidence()


def evidence(results: list[dict]) -> Evidence:
    found = Evidence(facts={"ranks": len(results), "parameters_sha256": results[0]["trained"]})

    def fail(kind: str, ranks: list[int], words: str) -> None:
        some = ranks[:NAMED]
        shown = ", ".join(results[rank]["label"] for rank in some) + " and more" * (some != ranks)
        found.fail(kind, f"{shown}: {words}", *(f"rank {rank}" for rank in some))

    errors = [result[kind] for result in results for kind in ("own_error", "reduced_error")]
    if all(map(math.isfinite, errors)):
        found.measurements = [Measurement("gradient_error", max(errors), "x")]
    else:  # the failure below has it; a report has no number that is not finite
        found.inapplicable["gradient_error"] = "a gradient is not finite"
    for rank, result in enumerate(results):
        if not result["own_error"] <= TOLERANCE:  # also for NaN
            error = f"{result['own_error']:.2g} of the largest gradient"
            words = (
                f"its own gradient, before any communication, differs from the reference by {error}"
            )
            fail("own-gradient", [rank], words)
    if bad := [rank for rank, r in enumerate(results) if not r["reduced_error"] <= TOLERANCE]:
        error = f"{results[bad[0]]['reduced_error']:.2g} of the largest gradient"
        words = f"the averaged gradient differs from that of one process by {error}"
        fail("shared-gradient", bad, words)
    counts = Counter(result["trained"] for result in results)
    common, votes = counts.most_common(1)[0]
    if len(counts) > 1:
        majority = votes * 2 > len(results)
        bad = [r for r, result in enumerate(results) if not majority or result["trained"] != common]
        other = "those of all others" if majority else "each other, with no majority"
        fail("diverged", bad, f"parameters differ after training from {other}")
    faults = len(found.problems)
    for rank, result in enumerate(results):
        if result["loaded"] != result["trained"]:
            words = "the checkpoint that it read is not the one that it wrote"
            fail("volume-bytes", [rank], words)
        elif result["resumed"] != result["straight"] and not faults:  # else it is a consequence
            words = "training resumed from the checkpoint ends with other parameters"
            fail("diverged", [rank], words)
    return found
