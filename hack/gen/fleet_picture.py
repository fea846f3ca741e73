"""The picture docs/fleet.svg: a plot of the fleet's page, by the page's own code, of numbers that are made up."""

from __future__ import annotations

import random
import re
import sys

from hack.paths import REPO

NODES, GPUS = 32, 8
BEHIND = {(7, 3): 0.86, (21, 6): 0.93}  # (node, GPU) -> share of what the others reach


def picture() -> str:
    sys.path.insert(0, str(REPO / "worker/src"))
    from gpuworker.fleet import outliers
    from gpuworker.fleet.formats import html, plots

    model, chance = "NVIDIA H100 80GB HBM3", random.Random(1)
    reports = [
        {
            "node": f"node-{node:02}",
            "scope": "node",
            "device": "cuda",
            "level": "quick",
            "facts": {"gpu_models": [model] * GPUS},
            "checks": [{"name": "compute", "measurements": [
                {"name": "gemm_bf16", "unit": "TFLOP/s", "device": f"cuda:{gpu}", "better": "higher", "judged": True,
                 "limit": None, "warn_limit": None, "limit_source": "",
                 "value": BEHIND.get((node, gpu), 1.0) * chance.gauss(705, 5)}
                for gpu in range(GPUS)
            ]}],
        }
        for node in range(NODES)
    ]  # fmt: skip
    (distribution,) = outliers.distributions(reports)
    outliers.find_outliers(distribution, outliers.DEFAULT)
    width, height = map(int, re.search(r'viewBox="0 0 (\d+) (\d+)"', svg := plots.strip_plot(distribution)).groups())
    size = f' width="{width}" height="{height}" xmlns="http://www.w3.org/2000/svg"'
    style = f"<style>{html.STYLE}svg{{background:var(--bg);width:{width}px;height:{height}px}}</style>"
    return re.sub(r' style="[^"]*">', f"{size}>{style}", svg, count=1) + "\n"
