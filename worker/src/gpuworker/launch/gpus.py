"""GPUs that this container sees, of any vendor, for the preflight. Nothing opens a GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

TIMEOUT_S = 30
# Devices of vendors that this file cannot count: TPU and Gaudi, Neuron, Ascend, Intel.
OTHER_DEVICES = ("accel*", "accel/accel*", "neuron*", "davinci[0-9]*", "xpu*")


def visible(dev: Path = Path("/dev")) -> tuple[list[str] | None, str]:
    """One model name per GPU, None if they cannot be counted; and why the driver does not answer.

    A MIG device counts as a GPU, since the container sees it instead of the GPU. Of AMD's GPUs a
    container sees the device files, and not which model they are.
    """
    if tool := shutil.which("nvidia-smi"):
        return _nvidia(tool)
    if any(list(dev.glob(pattern)) for pattern in OTHER_DEVICES):
        return None, ""
    files = "dri/renderD*" if (dev / "kfd").exists() else "nvidia[0-9]*"
    return ["GPU" for _ in dev.glob(files)], ""


def _nvidia(tool: str) -> tuple[list[str] | None, str]:
    try:
        done = subprocess.run(
            [tool, "-L"], capture_output=True, check=True, errors="replace", timeout=TIMEOUT_S
        )
    except subprocess.SubprocessError as error:
        return [], f"{error} {error.stdout or ''}".strip()[:300]
    except OSError as error:
        return None, f"nvidia-smi does not start: {error.strerror}"
    gpus = re.findall(r"^GPU \d+: (.+?)(?: \(UUID|$)", done.stdout, re.MULTILINE)
    mig = re.findall(r"^\s+(MIG \S+)", done.stdout, re.MULTILINE)
    return mig or gpus, ""
