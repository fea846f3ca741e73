"""System metrics of a node: CPU and memory with psutil, GPUs with nvidia-ml-py, where these are installed."""

from __future__ import annotations

import contextlib
import os
import time


class System:
    """Samples of one node, under system/node-N/."""

    def __init__(self, node: int):
        self.prefix = f"system/node-{node}/"
        self.step = 0
        self.gpus: list = []
        try:
            import psutil

            self.psutil = psutil
            psutil.cpu_percent()  # the first call only sets the start
        except ImportError:
            self.psutil = None
        # Not yet run on a GPU.
        with contextlib.suppress(Exception):
            import pynvml

            pynvml.nvmlInit()
            self.nvml = pynvml
            self.gpus = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]

    def sample(self) -> dict:
        """One record: percent, GiB and watts; the step counts samples."""
        values = {"load_1min": os.getloadavg()[0]}
        if self.psutil:
            values["cpu_percent"] = self.psutil.cpu_percent()
            values["memory_used_gib"] = self.psutil.virtual_memory().used / 2**30
        for index, gpu in enumerate(self.gpus):
            with contextlib.suppress(self.nvml.NVMLError):
                values[f"gpu{index}_percent"] = self.nvml.nvmlDeviceGetUtilizationRates(gpu).gpu
                values[f"gpu{index}_memory_used_gib"] = self.nvml.nvmlDeviceGetMemoryInfo(gpu).used / 2**30
                values[f"gpu{index}_watts"] = self.nvml.nvmlDeviceGetPowerUsage(gpu) / 1000
        self.step += 1
        metrics = {self.prefix + key: float(value) for key, value in values.items()}
        return {"step": self.step, "time": time.time(), "metrics": metrics}
