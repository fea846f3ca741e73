"""Measurements that limits, texts and the 15 s budget of a prolog rest on: hack.gpu.measure NAME --folder FOLDER.

steady     products for a minute: rate, clock, power and temperature over time; then other sizes and other data
memory     copy and triad for buffers of 64 MiB to 4 GiB
xid        what NVML reports of a program that reads an illegal address; how long a killed program keeps the GPU
prolog     a look at the node, 2 s of products with proof, 2 s of copies, repeated bits, the host link
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from gpuworker.accept.kernels import gemm
from gpuworker.accept.watches import XidWatch
from gpuworker.runtime.gpu_telemetry import Sampler

# A child that reads address 0x8 of the GPU: the program's own fault, which must not accuse the GPU.
ILLEGAL = """
import torch
source = r'extern "C" __global__ void peek(float *p) { p[0] = ((float*)8)[0]; }'
kernel = torch.cuda._compile_kernel(source, "peek")
kernel((1, 1, 1), (1, 1, 1), (torch.zeros(1, device="cuda"),))
torch.cuda.synchronize()
"""
ENDLESS = """
import torch
torch.zeros(1, device="cuda")
print("started", flush=True)
while True:
    torch.cuda._sleep(1 << 40)
    torch.cuda.synchronize()
"""


class Record:
    """Figures of a step, and series for which a figure is too little."""

    def __init__(self) -> None:
        self.figures: list[dict] = []
        self.series: dict[str, list] = {}

    def add(self, name: str, value: float, unit: str) -> None:
        self.figures.append({"name": name, "value": value, "unit": unit})
        print(f"{name} {value:.5g} {unit}", flush=True)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def rates(
    device: torch.device, size: int, seconds: float, fill: str = "normal"
) -> list[tuple[float, float]]:
    """(seconds since the start, TFLOP/s) of bf16 products, each about a fifth of a second long."""
    made = {
        "normal": lambda: torch.randn(size, size, device=device),
        "uniform": lambda: torch.rand(size, size, device=device),
        "zeros": lambda: torch.zeros(size, size, device=device),
    }
    a, b = (made[fill]().bfloat16() for _ in "ab")
    out = torch.empty_like(a)
    torch.mm(a, b, out=out)
    synchronize(device)
    begun = time.perf_counter()
    torch.mm(a, b, out=out)
    synchronize(device)
    batch = max(1, round(0.2 / (time.perf_counter() - begun)))
    found, start = [], time.perf_counter()
    while (before := time.perf_counter()) < start + seconds:
        for _ in range(batch):
            torch.mm(a, b, out=out)
        synchronize(device)
        now = time.perf_counter()
        found.append((now - start, batch * 2 * size**3 / (now - before) / 1e12))
    return found


def median(found: list[tuple[float, float]]) -> float:
    return statistics.median(rate for _, rate in found)


def steady(device: torch.device, record: Record, args: argparse.Namespace) -> None:
    gpu = device.type == "cuda"
    uuid = str(torch.cuda.get_device_properties(device).uuid) if gpu else ""
    with Sampler({"cuda:0": uuid} if gpu else {}, 0.2) as sampler:
        found = rates(device, args.size, args.seconds)
    record.series["rate"] = found
    record.series["telemetry"] = [
        [each.sm_mhz, each.temperature_c, each.power_w, each.clock_reasons]
        for each in sampler.readings
    ]
    record.add("first_8_s", median([each for each in found if each[0] < 8]), "TFLOP/s")
    last = [each for each in found if each[0] > args.seconds / 2]
    record.add("second_half", median(last), "TFLOP/s")
    record.add("lowest_fifth_of_a_second", min(rate for _, rate in found), "TFLOP/s")
    for index, (name, unit) in enumerate((("clock", "MHz"), ("temperature", "°C"), ("power", "W"))):
        if values := [each[index] for each in record.series["telemetry"] if each[index]]:
            record.add(f"{name}_end", statistics.median(values[-20:]), unit)
    for fill in ("normal", "uniform", "zeros"):
        record.add(
            f"data_{fill}", median(rates(device, args.size, args.seconds / 8, fill)), "TFLOP/s"
        )
    for size in (args.size // 2, args.size * 2):
        record.add(f"size_{size}", median(rates(device, size, args.seconds / 8)), "TFLOP/s")


def memory(device: torch.device, record: Record, args: argparse.Namespace) -> None:
    for mib in (64, 256, 1024, 4096) if device.type == "cuda" else (1, 4):
        words = mib * 2**20 // 4
        a, b, c = (torch.ones(words, device=device) for _ in "abc")
        for name, bytes_per_word, work in (
            ("copy", 8, lambda a=a, b=b: b.copy_(a)),
            ("triad", 12, lambda a=a, b=b, c=c: torch.add(a, b, alpha=3.0, out=c)),
        ):
            taken, end = [], time.perf_counter() + args.seconds / 8
            while time.perf_counter() < end:
                before = time.perf_counter()
                repeats = max(1, 8192 // mib)
                for _ in range(repeats):
                    work()
                synchronize(device)
                taken.append((time.perf_counter() - before) / repeats)
            for kind, seconds in (("", statistics.median(taken)), ("_slowest", max(taken))):
                rate = words * bytes_per_word / seconds / 1e9
                record.add(f"{name}{kind}_{mib}_mib", rate, "GB/s")
        del a, b, c


def xid(device: torch.device, record: Record, args: argparse.Namespace) -> None:
    watch = XidWatch()
    done = subprocess.run([sys.executable, "-c", ILLEGAL], capture_output=True, text=True)
    record.add("illegal_address_exit_code", done.returncode, "")
    record.series["illegal_address_words"] = done.stderr.splitlines()[-6:]
    time.sleep(2)  # the driver reports events a moment later
    found = watch.stop()
    record.series["xid_check"] = [str(found)]
    print(found, flush=True)
    sleeper = subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE)
    if device.type == "cuda":
        sleeper.stdout.readline()
        time.sleep(2)  # until a kernel runs
    killed = time.perf_counter()
    sleeper.send_signal(signal.SIGKILL)
    sleeper.wait()
    record.add("killed_program_gone", time.perf_counter() - killed, "s")
    torch.ones(1, device=device).sum().item()
    record.add("gpu_usable_again", time.perf_counter() - killed, "s")


def prolog(device: torch.device, record: Record, args: argparse.Namespace) -> None:
    record.add("python_and_torch", time.time() - args.started, "s")
    size, begun = args.size, time.perf_counter()
    torch.ones(1, device=device).sum().item()
    record.add("first_kernel", time.perf_counter() - begun, "s")
    begun = time.perf_counter()
    product = gemm.Product("bf16", size, device)
    product.multiply()
    errors = product.errors()
    record.add("proof", time.perf_counter() - begun, "s")
    record.add("errors", len(errors), "")
    record.add("gemm", median(rates(device, size, args.seconds / 4)), "TFLOP/s")
    words = 2**28 if device.type == "cuda" else 2**20
    a, taken = torch.ones(words, device=device), []
    b, end = torch.empty_like(a), time.perf_counter() + args.seconds / 4
    while time.perf_counter() < end:
        before = time.perf_counter()
        b.copy_(a)
        synchronize(device)
        taken.append(time.perf_counter() - before)
    record.add("copy", words * 8 / statistics.median(taken) / 1e9, "GB/s")
    begun = time.perf_counter()
    for _ in range(5):
        product.multiply()
        errors += product.errors()
    record.add("five_repeats", time.perf_counter() - begun, "s")
    begun = time.perf_counter()
    host = torch.empty(2**26, dtype=torch.float32, pin_memory=device.type == "cuda")
    record.add("pinned_256_mib", time.perf_counter() - begun, "s")
    begun = time.perf_counter()
    for _ in range(8):
        a[: 2**26].copy_(host[: len(a)], non_blocking=True)
    synchronize(device)
    rate = 8 * 4 * min(len(a), 2**26) / (time.perf_counter() - begun) / 1e9
    record.add("host_link", rate, "GB/s")
    record.add("whole", time.time() - args.started, "s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=["steady", "memory", "xid", "prolog"])
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--size", type=int, default=8192, help="of the matrices")
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    args.started = started_at()
    device = torch.device(args.device, 0) if args.device == "cuda" else torch.device("cpu")
    record = Record()
    try:
        globals()[args.name](device, record, args)
    finally:  # what was measured before an error is kept
        left = {"figures": record.figures, "series": record.series}
        (args.folder / "figures.json").write_text(json.dumps(left, indent=1) + "\n")


def started_at() -> float:
    """When this process began, by the wall clock: the import of torch counts."""
    with contextlib.suppress(OSError, ValueError):
        ticks = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")
    return time.time()


if __name__ == "__main__":
    main()
