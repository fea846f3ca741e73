"""DDP trains as one process would: same gradients, same parameters on every rank, same end after a resume.

The same across nodes: ddp-launch -m gpuworker.accept.ddp_tests --correctness
"""

from __future__ import annotations

from gpuworker.accept.registry import Evidence, Measure, Plan, Spec

SPEC = Spec(
    tag="DDP",
    seconds={"quick": 4, "full": 10, "burn-in": 60},
    measures={
        "gradient_error": Measure(
            "x", "largest difference to the gradient of one process, float64", better="lower", each="node"
        )
    },
    faults={
        "flipped-gradient": r"rank \d+ \(node \S+, \S+\): its own gradient, before any communication, differs",
        "diverged-parameter": r"parameters differ after training.*rank \d+",
        "damaged-checkpoint": r"rank \d+ \(node \S+, \S+\): the checkpoint that it read is not the one",
    },
)


def measure(plan: Plan) -> Evidence:
    from gpuworker.accept.distributed import correctness, local_world

    steps = {"quick": 5, "full": 50, "burn-in": 500}[plan.level]
    return correctness.evidence(local_world.run(plan, correctness.run, folder=str(plan.scratch), steps=steps))
