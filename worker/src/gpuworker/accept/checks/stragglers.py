"""No GPU of this node computes slower or arrives later than the others, which a collective would hide.

The same across nodes: ddp-launch -m gpuworker.accept.ddp_tests --stragglers
"""

from __future__ import annotations

from gpuworker.accept.registry import Evidence, Measure, Plan, Spec

SPEC = Spec(
    tag="DDP",
    seconds={"quick": 4, "full": 10, "burn-in": 60},
    measures={
        "slowest_compute": Measure("x", "slowest rank over the median", better="lower", each="node"),
        "latest_arrival": Measure("ms", "how long the others wait for the last rank", better="lower", each="node"),
    },
    faults={
        "slow-rank": r"rank \d+ \(node \S+, \S+\) is slow: .* x\)",
        "late-rank": r"rank \d+ \(node \S+, \S+\) is late: the others wait",
    },
)


def measure(plan: Plan) -> Evidence:
    from gpuworker.accept.distributed import local_world, stragglers

    rounds = {"quick": 8, "full": 20, "burn-in": 200}[plan.level]
    return stragglers.evidence(local_world.run(plan, stragglers.run, rounds=rounds))
