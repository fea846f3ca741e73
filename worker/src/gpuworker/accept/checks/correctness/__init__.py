"""DDP trains as one process does: same gradients, same parameters on every rank, same end after a resume.

Across nodes: ddp-launch -m gpuworker.accept.ddp_tests --correctness
"""

from __future__ import annotations

import sys

from gpuworker.accept.check_spec import WORLD, Measure, Plan, Spec
from gpuworker.accept.checks.correctness.tolerance import TOLERANCE
from gpuworker.judgement.report import Evidence

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
    return ddp_reference.evidence(
        local_world.run(plan, ddp_reference.run, folder=str(plan.scratch), steps=steps)
    )


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
    return ddp_reference.evidence(results) if results else Evidence()
