"""System metrics of a node: CPU and memory with psutil, GPUs with nvidia-ml-py, where these are installed."""

from __future__ import annotations

import contextlib
import os
import time

from gpuworker.runtime.gpu_inventory import open_nvml


class SystemMetrics:
    """Samples of one node, with the prefix system/node-N/."""

    def __init__(self, node_rank: int):
        self.prefix = f"system/node-{node_rank}/"
        self.step = 0
        self.gpus: list = []
        try:
            import psutil

            self.psutil = psutil
            psutil.cpu_percent()  # the first call only starts the measurement
        except ImportError:
            self.psutil = None
        self.nvml = open_nvml()
        if self.nvml is not None:
            with contextlib.suppress(self.nvml.NVMLError):
                count = self.nvml.nvmlDeviceGetCount()
                self.gpus = [self.nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]

    def sample(self) -> dict:
        """One record with percent, GiB and watts. The step is the sample's number."""
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
