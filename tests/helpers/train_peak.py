"""Main function of a rank that trains and prints the peak of its memory."""

from __future__ import annotations

import re
from pathlib import Path

from gpuworker.train import train_framework


def main(words: list[str]) -> int:
    code = train_framework.main(words)
    (peak,) = re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    print(f"peak of the process: {int(peak) >> 10} MiB", flush=True)
    return code
