"""A small network learns: the loss ends below 0.7 of its start."""

from __future__ import annotations

import math

from gpuworker.accept.registry import Evidence, Measure, Plan, Spec
from gpuworker.accept.report import Measurement

SPEC = Spec(
    tag="TRAIN",
    seconds={"quick": 4, "full": 30, "burn-in": 300},
    measures={"loss_drop": Measure("x", "first loss over last loss", limit="loss_drop", each="node")},
    faults={"nan-loss": r"loss went from \S+ to nan"},
)


def measure(plan: Plan) -> Evidence:
    import torch

    from gpuworker.accept.training import tiny_training

    first, last = tiny_training(torch.device(plan.device))
    if plan.injected("nan-loss"):
        last *= math.nan
    evidence = Evidence(facts={"loss_first": first, "loss_last": last})
    if not math.isfinite(first + last):
        evidence.wrong.append(f"loss went from {first:.4g} to {last:.4g}")
        evidence.inapplicable["loss_drop"] = "a loss is no number"
    else:
        evidence.measurements.append(Measurement("loss_drop", first / max(last, 1e-12), "x", plan.device))
    return evidence
