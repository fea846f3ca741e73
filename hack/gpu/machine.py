"""What the GPU pack runs on: versions, GPUs and the host, as figures.json of the first step."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
from pathlib import Path

import torch

from gpuworker.runtime import gpu_inventory


def main(folder: Path) -> None:
    source, gpus = gpu_inventory.inventory()
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    words = [", ".join(dict.fromkeys(names)) or "no GPU", f"torch {torch.__version__}", f"CUDA {torch.version.cuda}",
             f"driver {gpu_inventory.driver_version()}", f"Python {platform.python_version()}",
             f"kernel {platform.release().partition('-')[0]}"]  # fmt: skip
    figures = [
        ("gpus", len(names), ""),
        ("cpus", len(os.sched_getaffinity(0)), ""),
        ("memory", memory, "GiB"),
    ]
    left = {
        "note": "; ".join(words),
        "figures": [{"name": name, "value": value, "unit": unit} for name, value, unit in figures],
        "gpu_source": source,
        "gpus": [dataclasses.asdict(gpu) for gpu in gpus],
    }
    (folder / "figures.json").write_text(json.dumps(left, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
