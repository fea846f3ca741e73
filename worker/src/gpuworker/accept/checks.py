"""The checks of one node. Each takes the device and gives a Check; none catches its own crash (see node.py)."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from gpuworker.accept.report import FAIL, INCOMPLETE, PASS, Check, Measurement
from gpuworker.accept.training import tiny_training


@dataclass(frozen=True)
class Plan:
    """What to test against. device: "cpu" or "cuda"; gpus: how many this pod must see (0 on the CPU)."""

    device: str
    gpus: int
    min_compute_gflops: float | None = None
    ddp_processes: int = 2


def environment(plan: Plan) -> Check:
    """Is everything here that the other checks rely on?"""
    seen = torch.cuda.device_count() if plan.device == "cuda" else 0
    facts = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "gpus_expected": plan.gpus,
        "gpus_seen": seen,
        "gpu_models": [torch.cuda.get_device_name(i) for i in range(seen)],
    }
    if plan.device == "cuda" and seen == 0:
        return Check("environment", INCOMPLETE, f"torch sees no GPU, {plan.gpus} expected", facts=facts)
    if seen != plan.gpus:
        return Check("environment", FAIL, f"torch sees {seen} GPUs, {plan.gpus} expected", facts=facts)
    return Check("environment", PASS, facts=facts)


def compute(plan: Plan, size: int = 1024, repeats: int = 10) -> Check:
    """float32 matrix products on every device of the node: right and, if a limit is set, fast enough.

    GFLOP/s = 2·n³ / median time / 1e9 for n×n matrices. Right means: sampled rows agree with the same product in
    float64 within n·eps·‖row‖‖column‖, the textbook bound for a dot product of n terms (Higham, Accuracy and
    Stability of Numerical Algorithms, §3.1).
    """
    names = [f"cuda:{i}" for i in range(plan.gpus)] if plan.device == "cuda" else ["cpu"]
    measurements, faults = [], []
    for name in names:
        device = torch.device(name)
        generator = torch.Generator().manual_seed(0)
        a, b = (torch.randn(size, size, generator=generator) for _ in range(2))
        a_there, b_there = a.to(device), b.to(device)
        product = a_there @ b_there  # also the warm-up
        rows = torch.arange(0, size, 64)
        exact = a[rows].double() @ b.double()
        bound = size * torch.finfo(torch.float32).eps * torch.outer(a[rows].norm(dim=1), b.norm(dim=0)).double()
        right = (product[rows.to(device)].cpu().double() - exact).abs() <= bound
        wrong = int((~right).sum())  # NaN is wrong too
        if wrong:
            faults.append(f"{name}: {wrong} of {exact.numel()} sampled products are wrong")
        times = [_timed(lambda x=a_there, y=b_there: x @ y, device) for _ in range(repeats)]
        gflops = 2 * size**3 / statistics.median(times) / 1e9
        source = None if plan.min_compute_gflops is None else "limits.computeGflops"
        measurement = Measurement(f"compute_{name}", gflops, "GFLOP/s", plan.min_compute_gflops, source)
        if measurement.missed:
            faults.append(f"{name}: {gflops:.4g} GFLOP/s is below the limit of {plan.min_compute_gflops:g} ({source})")
        measurements.append(measurement)
    return Check("compute", FAIL if faults else PASS, "; ".join(faults), measurements)


def _timed(action, device: torch.device) -> float:
    """Seconds of one call, the device's queue included."""
    start = time.perf_counter()
    action()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def training(plan: Plan) -> Check:
    """A small network learns: the loss ends below 0.7 of its start (the ratio the acceptance suite always used)."""
    first, last = tiny_training(torch.device(plan.device))
    facts = {"loss_first": first, "loss_last": last}
    if not math.isfinite(first + last):
        return Check("training", FAIL, f"loss went from {first:.4g} to {last:.4g}", facts=facts)
    ratio = first / max(last, 1e-12)
    measurement = Measurement("loss_drop", ratio, "x", 1 / 0.7, "fixed: last < 0.7 × first")
    reason = f"loss went from {first:.4g} to {last:.4g}" if measurement.missed else ""
    return Check("training", FAIL if reason else PASS, reason, [measurement], facts)


def collectives(plan: Plan) -> Check:
    """All-reduce between processes of this node, one a GPU (two on the CPU), by ddp_tests under torchrun."""
    processes = plan.gpus if plan.device == "cuda" else plan.ddp_processes
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}",
                   "-m", "gpuworker.accept.ddp_tests", "--device", plan.device, "--report-dir", folder]  # fmt: skip
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        path = Path(folder) / "ddp_tests_result.json"
        if done.returncode:
            sys.stderr.write(done.stderr)  # the whole story for the pod's log
        result = json.loads(path.read_text()) if path.exists() else None
    if result is None or (done.returncode and result["ok"]):  # right sums of a world that then broke are no evidence
        return Check("collectives", INCOMPLETE, f"torchrun exited {done.returncode}: {_cause(done.stderr)}")
    if result["world"] != processes:
        return Check("collectives", INCOMPLETE, f"{result['world']} processes took part, {processes} expected")
    bandwidth = Measurement("allreduce_bus_bandwidth", result["busbw_gbps"], "GB/s")
    wrong, rounds = result["wrong_iters"], result["iters"] + 1
    reason = "" if result["ok"] else f"all-reduce gave wrong sums in {wrong} of {rounds} rounds"
    return Check("collectives", FAIL if reason else PASS, reason, [bandwidth], result)


def _cause(stderr: str) -> str:
    """The first error in torchrun's output; what follows is torchrun's own account of it."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"^(\[rank\d+\]: )?[\w.]*(Error|Exception): \S|exitcode: ", line)]
    return (errors + lines[-1:] + ["no output"])[0]


CHECKS = {"environment": environment, "compute": compute, "training": training, "collectives": collectives}
