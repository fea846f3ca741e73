"""DDP trains as one process does: same gradients, same parameters on every rank, same end after a resume.

Across nodes: ddp-launch -m gpuworker.accept.ddp_tests --correctness
"""

from __future__ import annotations

import math
import sys

from gpuworker.accept.check_spec import WORLD, Evidence, Measure, Plan, Spec
from gpuworker.accept.checks.correctness.tolerance import TOLERANCE

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
            most=math.inf,
            noise=TOLERANCE,
            meaningful=(sys.float_info.epsilon, TOLERANCE),
            each="node",
        )
    },
    faults={
        "flipped-gradient": r"rank \d+ \(node \S+, \S+\): its own gradient, before any communication, differs",
        "nan-gradient": r"rank \d+ \(node \S+, \S+\): its own gradient, .* differs from the reference by inf",
        "diverged-parameter": r"parameters differ after training.*rank \d+",
        "damaged-checkpoint": r"rank \d+ \(node \S+, \S+\): the checkpoint that it read is not the one",
    },
)


def measure(plan: Plan) -> Evidence:
    from gpuworker.accept.checks.correctness import ddp_reference
    from gpuworker.accept.distributed import local_world

    steps = {"quick": 5, "full": 50, "burn-in": 500}[plan.level]
    return ddp_reference.evidence(local_world.run(plan, ddp_reference.run, folder=str(plan.scratch), steps=steps))


def problems(evidence: Evidence, plan: Plan) -> None:
    """Of numbers alone: which rank it is, the measuring check names."""
    if reason := evidence.inapplicable.get("gradient_error"):
        evidence.failures.append(f"no gradient_error: {reason}")
    for number in evidence.measurements:
        if number.name == "gradient_error" and number.value > TOLERANCE:
            evidence.failures.append(f"a gradient differs from that of one process by {number.value:.3g}")


def measure_world(context, plan: Plan) -> Evidence:
    from gpuworker.accept.checks.correctness import ddp_reference

    plan.scratch.mkdir(parents=True, exist_ok=True)
    results = context.gather("correctness", ddp_reference.run(context, str(plan.scratch)))
    return ddp_reference.evidence(results) if results else Evidence()
