"""No rank computes slower or arrives later than the others, which a collective would hide.

Across nodes: ddp-launch -m gpuworker.accept.ddp_tests --stragglers
"""

from __future__ import annotations

import statistics

from gpuworker.accept import peer_comparison
from gpuworker.accept.check_spec import WORLD, Measure, Plan, Spec
from gpuworker.judgement.report import Evidence, Measurement

# Smallest excess over the median that counts: healthy GPUs of one model differ by 5 %
# (stas00/ml-engineering), and 10 % is the tolerance of huggingface/gpu-fryer. Ranks of a rehearsal
# share cores: with other programs running, a healthy one took 1.8 times as long.
FLOOR = {"cuda": 0.10, "cpu": 1.0}
FEW = 5  # fewer values have no meaningful median absolute deviation
LATE_S = {"cuda": 0.005, "cpu": 0.15}  # delay that the OS scheduler may cause
MOST_FLOOR = 1.0  # whatever the deviation of the others
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
    return evidence(local_world.run(plan, rank_times.run, rounds=rounds))


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


def latest_s(kind: str, usual_s: float) -> float:
    """Seconds after the others at which a rank is late, whose work takes `usual_s`. `kind`:
    "cuda" or "cpu".
    """
    return max(LATE_S[kind], FLOOR[kind] * usual_s)


def measure_world(context, plan: Plan) -> Evidence:
    from gpuworker.accept.checks.stragglers import rank_times

    results = context.gather("stragglers", rank_times.run(context))
    return evidence(results) if results else Evidence()


def evidence(results: list[dict]) -> Evidence:
    """Evidence that names the ranks that compute slower or arrive later than the others."""
    kind = results[0]["device"]
    typical, _ = peer_comparison.typical_time_and_tolerance(kind)
    compute = [typical(result["compute_s"]) for result in results]
    rounds = zip(*(result["wait_s"] for result in results), strict=True)
    late = [
        typical(by_rank) for by_rank in zip(*([max(w) - x for x in w] for w in rounds), strict=True)
    ]
    usual, on_time = _usual(compute), _usual(late)
    found = Evidence(facts={"ranks": len(results), "compute_s": usual, "on_time_s": on_time})
    found.samples = {"compute_s": compute, "late_s": late[:200]}
    found.measurements = [
        Measurement("slowest_compute", max(compute) / usual, "x"),
        Measurement("latest_arrival", max(late) * 1e3, "ms"),
    ]
    slow = outliers(compute, FLOOR[kind])
    for rank in slow:
        times = f"{compute[rank] * 1e3:.3g} ms for work that takes {usual * 1e3:.3g} ms"
        words = f"{results[rank]['label']} is slow: {times} ({compute[rank] / usual:.2f} x)"
        found.fail("slow-rank", words, f"rank {rank}")
    for rank in set(range(len(late))) - set(slow):
        if late[rank] - on_time > latest_s(kind, usual):
            waits = f"the others wait {late[rank] * 1e3:.3g} ms for it in every round"
            words = f"{results[rank]['label']} is late: {waits}, although it computes as fast as they do"
            found.fail("late-rank", words, f"rank {rank}")
    return found


def outliers(values: list[float], floor: float) -> list[int]:
    """Indices of values above the median by `floor` and, of five or more, by 3 robust deviations
    (1.4826 · MAD).

    A value of more than twice the median is always one of them.
    """
    usual = _usual(values)
    spread = 0.0
    if len(values) >= FEW:
        spread = 3 * 1.4826 * statistics.median(abs(value - usual) for value in values)
    least = max(floor, min(spread / usual, MOST_FLOOR)) * usual if usual else floor
    return [index for index, value in enumerate(values) if value - usual > least]


def _usual(values: list[float]) -> float:
    """The median; of few values the lower median, since half of them may be bad."""
    return statistics.median(values) if len(values) >= FEW else statistics.median_low(values)
