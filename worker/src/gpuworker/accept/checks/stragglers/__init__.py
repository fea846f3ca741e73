"""No rank computes slower or arrives later than the others, which a collective would hide.

Across nodes: ddp-launch -m gpuworker.accept.ddp_tests --stragglers
"""

from __future__ import annotations

from gpuworker.accept.check_spec import WORLD, Measure, Plan, Spec
from gpuworker.accept.checks.stragglers.floors import FEW, FLOOR, LATE_S, MOST_FLOOR, latest_s
from gpuworker.judgement.report import Evidence

SPEC = Spec(
    tag="DDP",
    seconds={"quick": 4, "full": 10, "burn-in": 60},
    process=WORLD,
    across_nodes="name the ranks that compute slower or arrive later",
    measures={
        "slowest_compute": Measure(
            "x",
            "slowest rank over the median",
            better="lower",
            least=1,
            noise=FLOOR["cuda"],
            each="node",
            meaningful=(1.001, 100),
        ),
        "latest_arrival": Measure(
            "ms",
            "time that the others wait for the last rank",
            better="lower",
            noise=1e3 * LATE_S["cuda"],
            meaningful=(1e-3, 60e3),
            each="node",
        ),
    },
    faults={
        "slow-rank": "slow-rank",
        "late-rank": "late-rank",
    },
)


def measure(plan: Plan) -> Evidence:
    from gpuworker.accept.checks.stragglers import rank_times
    from gpuworker.accept.distributed import local_world

    rounds = {"quick": 8, "full": 20, "burn-in": 200}[plan.level]
    return rank_times.evidence(local_world.run(plan, rank_times.run, rounds=rounds))


def problems(evidence: Evidence, plan: Plan) -> None:
    """Of numbers alone: which rank it is, the measuring check names."""
    few = evidence.facts["ranks"] < FEW
    for number in evidence.measurements:
        if number.name == "slowest_compute" and number.value > 1 + (
            FLOOR[plan.device] if few else MOST_FLOOR
        ):
            words = f"one rank takes {number.value:.3g} times as long as the median"
            evidence.fail("slow-rank", words, measure=number.name)
        late_s = (
            number.value / 1e3 - evidence.facts["on_time_s"]
            if number.name == "latest_arrival"
            else 0
        )
        if late_s > latest_s(plan.device, evidence.facts["compute_s"]):
            words = f"one rank is late: the others wait {number.value:.3g} ms for it in every round"
            evidence.fail("late-rank", words, measure=number.name)


def measure_world(context, plan: Plan) -> Evidence:
    from gpuworker.accept.checks.stragglers import rank_times

    results = context.gather("stragglers", rank_times.run(context))
    return rank_times.evidence(results) if results else Evidence()
