"""No rank computes slower or arrives later than the others, which a collective would hide.

Across nodes: ddp-launch -m gpuworker.accept.ddp_tests --stragglers
"""

from __future__ import annotations

from gpuworker.accept.check_spec import Measure, Plan, Spec
from gpuworker.judgement.report import FAIL, Evidence

# Smallest excess over the median that counts: healthy GPUs of one model differ by 5 %
# (stas00/ml-engineering), and 10 % is the tolerance of huggingface/gpu-fryer. Ranks of a rehearsal
# share cores: with other programs running, a healthy one took 1.8 times as long.
FLOOR = {"cuda": 0.10, "cpu": 1.0}
FEW = 5  # fewer values have no meaningful median absolute deviation
MOST_FLOOR = 1.0  # whatever the deviation of the others
LATE_S = {"cuda": 0.005, "cpu": 0.15}  # delay that the OS scheduler may cause
SPEC = Spec(
    tag="DDP",
    seconds={"quick": 7, "full": 13, "burn-in": 60},
    ranks="stragglers.rank_times",
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


def problems(evidence: Evidence, plan: Plan) -> None:
    """Of numbers alone: which rank it is, the measuring knows."""
    if evidence.has(FAIL):
        return
    number = {number.name: number.value for number in evidence.measurements}
    slowest = 1 + (FLOOR[plan.device] if evidence.facts["ranks"] < FEW else MOST_FLOOR)
    if (times := number.get("slowest_compute", 0)) > slowest:
        words = f"one rank takes {times:.3g} times as long as the median"
        evidence.fail("slow-rank", words, measure="slowest_compute")
    late_ms = number.get("latest_arrival", 0) - 1e3 * evidence.facts["on_time_s"]
    if late_ms > 1e3 * latest_s(plan.device, evidence.facts["compute_s"]):
        words = f"one rank is late: the others wait {late_ms:.3g} ms for it in every round"
        evidence.fail("late-rank", words, measure="latest_arrival")


def latest_s(kind: str, usual_s: float) -> float:
    """Seconds after the others at which a rank is late, whose work takes `usual_s`."""
    return max(LATE_S[kind], FLOOR[kind] * usual_s)
