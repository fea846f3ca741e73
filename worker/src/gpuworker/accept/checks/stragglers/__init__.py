"""No rank computes slower or arrives later than the others, which a collective would hide.

Across nodes: ddp-launch -m gpuworker.accept.ddp_tests --stragglers
"""

from __future__ import annotations

from gpuworker.accept.check_spec import Measure, Spec

# Smallest excess over the median that counts: healthy GPUs of one model differ by 5 %
# (stas00/ml-engineering), and 10 % is the tolerance of huggingface/gpu-fryer. Ranks of a rehearsal
# share cores: with other programs running, a healthy one took 1.8 times as long.
FLOOR = {"cuda": 0.10, "cpu": 1.0}
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
