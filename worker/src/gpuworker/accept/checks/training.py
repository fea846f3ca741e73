"""Every device trains: a loss falls, and transformer steps keep their speed when all devices train together.

The small training across nodes: ddp-launch -m gpuworker.accept.ddp_tests --train-smoke
"""

from __future__ import annotations

from gpuworker.accept.registry import Evidence, Measure, Plan, Spec

SPEC = Spec(
    tag="TRAIN",
    seconds={"quick": 8, "full": 40, "burn-in": 300},
    measures={
        "loss_drop": Measure("x", "loss of the first steps over loss of the last", limit="loss_drop"),
        "tokens_per_s": Measure("tokens/s", "of one device, in steps of all devices together"),
        "mfu": Measure("ratio", "share of the peak that the model's own FLOP make up"),
        "weak_scaling": Measure(
            "ratio", "step of one device alone over step of all together", limit="weak_scaling", each="node"
        ),
    },
    faults={"nan-loss": r"rank \d+ \(node \S+, \S+\): loss went from \S+ to nan"},
)


def measure(plan: Plan) -> Evidence:
    from gpuworker.accept.distributed import local_world, training

    steps = {"quick": 10, "full": 50, "burn-in": 500}[plan.level]
    return training.evidence(local_world.run(plan, training.run, steps=steps))
