"""Figures per GPU model: data sheet values and measured rates, each with its source
(gpu_specs.yaml).
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

MODELS: list[dict] = json.loads(
    Path(__file__).with_name("gpu_specs.json").read_text(encoding="utf-8")
)


@functools.cache
def entry(model: str) -> dict | None:
    """The table's entry for torch's device name, or for the table's own name of a model."""
    return next(
        (e for e in MODELS if model and (model == e["model"] or re.search(e["match"], model))), None
    )


def figures(key: str, model: str) -> dict:
    """{"specification": …, "best": …, "sustained": …, "source": …, "model": …} as far as known,
    else {}.

    Keys: gemm_FORMAT in TFLOP/s; memory_copy, memory_triad, nvlink_oneway and pcie_x16 in GB/s.
    """
    found = entry(model)
    return {**found[key], "model": found["model"]} if found and key in found else {}
