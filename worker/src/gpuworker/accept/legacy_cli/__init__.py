"""Commands of the gpu-cluster-acceptance image with their original names, flags, tags and report
files.

They run the checks of this package; tests/worker/test_legacy_cli.py lists the corrected faults of
the originals. Each also takes --device cpu for a rehearsal, and returns exit code 3 if nothing was
tested.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path

from gpuworker.judgement.report import write_json
from gpuworker.runtime import gpu_inventory
from gpuworker.runtime.log import log

NOT_TESTED = 3


def parser(name: str, description: str, report_name: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=name, description=description)
    made.add_argument("--quick", action="store_true", help="a minute instead of ten")
    made.add_argument(
        "--verbose", action="store_true", help="accepted; the log is complete without it"
    )
    made.add_argument("--report-dir", default="reports")
    made.add_argument("--report-name", default=report_name)
    made.add_argument(
        "--device", choices=["cpu", "cuda"], default="cuda", help="cpu is a rehearsal without GPUs"
    )
    return made


def environment() -> dict:
    """The `env` of the original reports."""
    import torch

    gpus = enumerate(gpu_inventory.inventory()[1])
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda_available": torch.cuda.is_available(),
        "cuda_device_count": torch.cuda.device_count(),
        "nvidia_smi": "\n".join(
            f"GPU {index}: {gpu.name} (UUID: {gpu.uuid})" for index, gpu in enumerate(gpus)
        )
        or None,
    }


def skip_without_gpu(env: dict, device: str, path: Path | None) -> None:
    """Exit with NOT_TESTED if no GPU is present; the originals reported success."""
    if device == "cpu" or env["cuda_device_count"]:
        return
    if path:
        write_json(path, {"skipped": True, "reason": "no_gpu", "env": env})
        log(
            "RESULT",
            verdict="INCOMPLETE",
            reason="torch sees no GPU: nothing was tested",
            report=path,
        )
    sys.exit(NOT_TESTED)


def gpus_expected(env: dict) -> int:
    """GPUS_PER_NODE of the manifest, else the number of present GPUs."""
    return int(os.environ.get("GPUS_PER_NODE") or env["cuda_device_count"])
