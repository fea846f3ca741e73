"""DDP trains as one process does: same gradients, parameters on every rank, and end after a resume.

Across nodes: ddp-launch -m gpuworker.accept.ddp_tests --correctness
"""

from __future__ import annotations

import sys

from gpuworker.judgement.check_spec import Measure, Spec

# the order of additions may cause less; of the largest gradient
TOLERANCE = 1e-10
SPEC = Spec(
    tag="DDP",
    seconds={"quick": 7, "full": 13, "burn-in": 60},
    ranks="correctness.ddp_reference",
    across_nodes="DDP against one process; checkpoint and resume",
    measures={
        "gradient_error": Measure(
            "x",
            "largest difference from the gradient of one process, float64",
            better="lower",
            fail=TOLERANCE,
            noise=TOLERANCE,
            meaningful=(sys.float_info.epsilon, TOLERANCE),
            each="node",
        )
    },
    faults={
        "flipped-gradient": "own-gradient",
        "nan-gradient": "own-gradient",
        "diverged-parameter": "diverged",
        "damaged-checkpoint": "volume-bytes",
    },
)
