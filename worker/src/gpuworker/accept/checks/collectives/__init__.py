"""Collectives between GPUs are correct in every element, and as fast as the links allow.

On one node: NVLink or PCIe. Across nodes: ddp-launch -m gpuworker.accept.ddp_tests --collectives
"""

from __future__ import annotations

from gpuworker.judgement.check_spec import Measure, Spec

REDUCED = ("all_reduce", "all_gather", "reduce_scatter")  # rings, which the links bound
SPEC = Spec(
    tag="DDP",
    seconds={"quick": 13, "full": 63, "burn-in": 600},
    ranks="collectives.sweep",
    across_nodes="six collectives, many sizes, every element checked",
    measures={
        f"{name}_busbw": Measure(
            "GB/s",
            f"bus bandwidth of {name.replace('_', '-')}",
            limit="busbw_node",
            limit_across_nodes="busbw_fabric",
            # NVLS adds in the switch: 480 of 450 GB/s (H200, nccl-tests issue 272)
            ceiling_tolerance=1.25,
            each="node",
        )
        for name in REDUCED
    }
    | {
        f"{name}_busbw": Measure("GB/s", proves, each="node", meaningful=(0.01, 1e4))
        for name, proves in (
            ("all_to_all", "bus bandwidth of all-to-all"),
            ("broadcast", "bus bandwidth of broadcast"),
            ("send_recv", "bandwidth of each rank sending to the next one"),
        )
    },
    faults={"wrong-element": "wrong-elements"},
)
