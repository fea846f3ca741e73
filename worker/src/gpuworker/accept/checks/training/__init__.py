"""Every device trains: a loss falls, and transformer steps keep their speed when all train.

A small training across nodes: ddp-launch -m gpuworker.accept.ddp_tests --train-smoke
"""

from __future__ import annotations

import math

from gpuworker.judgement.check_spec import Measure, Spec

SPEC = Spec(
    tag="TRAIN",
    seconds={"quick": 8, "full": 40, "burn-in": 300},
    ranks="training.training_steps",
    measures={
        "loss_drop": Measure(
            "x",
            "loss of the first steps over loss of the last",
            limit="loss_drop",
            noise=math.inf,
            meaningful=(1, 100),
        ),  # not compared: other software rounds differently, which grows with every step
        "tokens_per_s": Measure(
            "tokens/s",
            "of one device, in steps of all devices together",
            least=1,
            meaningful=(1, 1e7),
        ),
        "mfu": Measure(
            "ratio",
            "model FLOPs utilization: share of the peak rate",
            noise=0.01,
            meaningful=(0.01, 1.15),
            optional=True,
        ),
    },
    faults={
        "nan-loss": "loss",
    },
)
