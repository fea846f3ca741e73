"""No rank computes slower or arrives later than the others, which a collective would hide.

Across nodes: ddp-launch -m gpuworker.accept.ddp_tests --stragglers

Compute time: the same work on every rank, timed by the rank. Arrival: each rank's wait in the
barrier after the work; the rank that waits least arrived last. Clocks of different ranks are not
compared. Ranks of a rehearsal share processors: their compute time is the processor time of the
process, and their best round counts.
"""

from __future__ import annotations

import statistics
import time

from gpuworker.judgement import peer_comparison
from gpuworker.judgement.check_spec import Measure, Plan, Spec
from gpuworker.judgement.report import Evidence

# Smallest excess over the median that counts: healthy GPUs of one model differ by 5 %
# (stas00/ml-engineering), and 10 % is the tolerance of huggingface/gpu-fryer. Ranks of a rehearsal
# share cores: with other programs running, a healthy one took 1.8 times as long.
FLOOR = {"cuda": 0.10, "cpu": 1.0}
LATE_S = {"cuda": 0.005, "cpu": 0.15}  # delay that the OS scheduler may cause
SPEC = Spec(
    tag="DDP",
    seconds={"quick": 7, "full": 13, "burn-in": 60},
    ranks="stragglers",
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
FEW = 5  # fewer values have no meaningful median absolute deviation
MOST_FLOOR = 1.0  # whatever the deviation of the others


def run(context, plan: Plan) -> dict:
    """Seconds of computing and of waiting per round on this rank."""
    import torch

    from gpuworker.runtime import process_group

    rounds = {"quick": 8, "full": 20, "burn-in": 200}[plan.level]
    size, repeats = (8192, 8) if context.device.type == "cuda" else (192, 8)
    a, b = (torch.randn(size, size, device=context.device) for _ in range(2))
    work = repeats * (4 if context.injected("slow-rank") else 1)
    compute, wait = [], []
    for number in range(rounds + 2):  # the first two warm up
        context.synchronize()
        context.enter(f"the barrier before round {number}")
        process_group.barrier(context.device)
        start = _now(context)
        for _ in range(work):
            torch.mm(a, b)
        context.synchronize()
        seconds = _now(context) - start
        if context.injected("late-rank"):
            time.sleep(0.6)  # far above LATE_S, even if other ranks are delayed
        context.enter(f"the barrier after round {number}")
        arrived = time.perf_counter()
        process_group.barrier(context.device)
        context.synchronize()
        if number >= 2:
            compute.append(seconds)
            wait.append(time.perf_counter() - arrived)
    kind = context.device.type
    return {"label": context.label, "device": kind, "compute_s": compute, "wait_s": wait}


def _now(context) -> float:
    return time.process_time() if context.device.type == "cpu" else time.perf_counter()


def evidence(results: list[dict], plan: Plan, nodes: int) -> Evidence:
    """Evidence that names the ranks that compute slower or arrive later than the others."""
    kind = results[0]["device"]
    typical = peer_comparison.typical_time(kind)
    compute = [typical(result["compute_s"]) for result in results]
    rounds = zip(*(result["wait_s"] for result in results), strict=True)
    late = [
        typical(by_rank) for by_rank in zip(*([max(w) - x for x in w] for w in rounds), strict=True)
    ]
    usual, on_time = _usual(compute), _usual(late)
    found = Evidence(facts={"ranks": len(results)})
    found.add_number("slowest_compute", max(compute) / usual, "x")
    found.add_number("latest_arrival", max(late) * 1e3, "ms")
    slow = outliers(compute, FLOOR[kind])
    for rank in slow:
        times = f"{compute[rank] * 1e3:.3g} ms for work that takes {usual * 1e3:.3g} ms"
        words = f"{results[rank]['label']} is slow: {times} ({compute[rank] / usual:.2f} x)"
        found.fail("slow-rank", words, f"rank {rank}", measure="slowest_compute")
    for rank in set(range(len(late))) - set(slow):
        if late[rank] - on_time > max(LATE_S[kind], FLOOR[kind] * usual):
            waits = f"the others wait {late[rank] * 1e3:.3g} ms for it in every round"
            words = (
                f"{results[rank]['label']} is late: {waits}, although it computes as fast as they "
                "do"
            )
            found.fail("late-rank", words, f"rank {rank}", measure="latest_arrival")
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
