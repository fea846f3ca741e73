"""No node and no link between two nodes is slow, broken or corrupts data: the bad-node search.

Every node exchanges data with every other one; plan.py explains the method.
Across nodes, or between the GPUs of one node:
ddp-launch -m gpuworker.accept.ddp_tests --bad-nodes
"""

from __future__ import annotations

from gpuworker.judgement.check_spec import Measure, Plan, Spec
from gpuworker.judgement.report import Evidence

SPEC = Spec(
    tag="DDP",
    seconds={},  # not a check of accept-node
    across_nodes="find bad nodes and links by tests of changing groups",
    measures={
        "pair_bandwidth": Measure(
            "GB/s", "an exchange of two nodes, the median of the better quarter", each="node"
        )
    },
    faults={
        "slow-node": "bad-node",
        "corrupt-node": "bad-node",
        "hung-node": "bad-node",
        "slow-node-link": "bad-link",
    },
)


def measure_world(context, plan: Plan) -> Evidence:
    from gpuworker.accept.checks.bad_nodes import search

    return search.run(context, plan.timeout_s, plan.expected_gbps) or Evidence()
