"""Collectives between the GPUs of this node are right in every element, and as fast as the links allow.

The same sweep across nodes: ddp-launch -m gpuworker.accept.ddp_tests --sweep
"""

from __future__ import annotations

from gpuworker.accept.registry import Evidence, Measure, Plan, Spec

SPEC = Spec(
    tag="DDP",
    seconds={"quick": 10, "full": 60, "burn-in": 600},
    measures={
        "all_reduce_busbw": Measure("GB/s", "bus bandwidth of all-reduce", limit="busbw_node", each="node"),
        "all_gather_busbw": Measure("GB/s", "bus bandwidth of all-gather", limit="busbw_node", each="node"),
        "reduce_scatter_busbw": Measure("GB/s", "bus bandwidth of reduce-scatter", limit="busbw_node", each="node"),
        "all_to_all_busbw": Measure("GB/s", "bus bandwidth of all-to-all", each="node"),
        "broadcast_busbw": Measure("GB/s", "bus bandwidth of broadcast", each="node"),
        "send_recv_busbw": Measure("GB/s", "bandwidth of every rank sending to the next", each="node"),
    },
    faults={
        "wrong-element": r"rank \d+ \(node \S+, \S+\): all_reduce of \d+ bytes, round 0: 1 of \d+ elements are wrong"
    },
)


def sizes(plan: Plan) -> list[int]:
    """Bytes. Verdicts need the largest: small messages show latency, not the links."""
    if plan.device == "cpu":
        return [1 << 12, 1 << 16, 1 << 20] if plan.level == "quick" else [1 << power for power in range(10, 25, 2)]
    if plan.level == "quick":
        return [1 << 20, 1 << 26, 1 << 30]
    return [1 << power for power in range(10, 33)]


def measure(plan: Plan) -> Evidence:
    from gpuworker.accept.distributed import collectives, local_world

    options = {"rounds": 5, "warm_up": 2} if plan.device == "cpu" else {}
    if plan.level == "burn-in":
        options["seconds"] = plan.seconds
    return collectives.evidence(local_world.run(plan, collectives.run, sizes=sizes(plan), **options))
