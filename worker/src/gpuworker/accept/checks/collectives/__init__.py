"""Collectives between GPUs are correct in every element, and as fast as the links allow.

On one node: NVLink or PCIe. Across nodes: ddp-launch -m gpuworker.accept.ddp_tests --collectives
"""

from __future__ import annotations

from gpuworker.accept.check_spec import WORLD, Measure, Plan, Spec
from gpuworker.judgement.report import Evidence

SPEC = Spec(
    tag="DDP",
    seconds={"quick": 10, "full": 60, "burn-in": 600},
    process=WORLD,
    across_nodes="six collectives, many sizes, every element checked",
    measures={
        **{
            f"{name}_busbw": Measure(
                "GB/s",
                f"bus bandwidth of {name.replace('_', '-')}",
                limit="busbw_node",
                limit_across_nodes="busbw_fabric",
                # NVLS adds in the switch: 480 of 450 GB/s (H200, nccl-tests issue 272)
                ceiling_tolerance=1.25,
                each="node",
            )
            for name in ("all_reduce", "all_gather", "reduce_scatter")
        },
        "all_to_all_busbw": Measure(
            "GB/s", "bus bandwidth of all-to-all", each="node", meaningful=(0.01, 1e4)
        ),
        "broadcast_busbw": Measure(
            "GB/s", "bus bandwidth of broadcast", each="node", meaningful=(0.01, 1e4)
        ),
        "send_recv_busbw": Measure(
            "GB/s",
            "bandwidth of each rank sending to the next one",
            each="node",
            meaningful=(0.01, 1e4),
        ),
    },
    faults={
        "wrong-element": "wrong-elements",
    },
)


def sizes(plan: Plan) -> list[int]:
    """Message sizes in bytes. The largest is judged: small messages show latency, not bandwidth."""
    if plan.device == "cpu":
        return (
            [1 << 12, 1 << 16, 1 << 20]
            if plan.level == "quick"
            else [1 << power for power in range(10, 25, 2)]
        )
    if plan.level == "quick":
        return [1 << 20, 1 << 26, 1 << 30]
    return [1 << power for power in range(10, 33)]


def measure(plan: Plan) -> Evidence:
    from gpuworker.accept.checks.collectives import sweep
    from gpuworker.accept.distributed import local_world

    seconds = plan.seconds if plan.level == "burn-in" else 0
    return sweep.evidence(
        local_world.run(plan, sweep.run, sizes=sizes(plan), seconds=seconds, **_rounds(plan))
    )


def measure_world(context, plan: Plan) -> Evidence:
    from gpuworker.accept.checks.collectives import sweep

    results = context.gather("collectives", sweep.run(context, sizes(plan), **_rounds(plan)))
    return sweep.evidence(results, context.nodes, plan.nic_gbps) if results else Evidence()


def _rounds(plan: Plan) -> dict[str, int]:
    return {"rounds": 5, "warm_up": 2} if plan.device == "cpu" else {}
