"""Fingerprints: a fixed sequence of operations per number format, and a hash of every bit of its
results.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

import torch

from gpuworker.accept import host_info
from gpuworker.accept.kernels import float8

FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
WORKSPACE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # one of cuBLAS's two reproducible settings
Sequence = Callable[[], list[torch.Tensor]]


def deterministic() -> None:
    """Select deterministic algorithms. Call it before the first use of CUDA in this process."""
    os.environ |= WORKSPACE
    # use_deterministic_algorithms would import half of torch
    torch.set_deterministic_debug_mode("error")
    torch.set_float32_matmul_precision("highest")


def sequences(device: torch.device, size: int) -> dict[str, Sequence]:
    """Format -> its sequence on size×size inputs. size is a multiple of 8.

    The CPU is too slow for float16 products.
    """
    a, b = _inputs(size)
    found: dict[str, Sequence] = {"integer": _integer(a.to(device), b.to(device))}
    for kind, dtype in FORMATS.items():
        if device.type == "cuda" or kind != "fp16":
            # -1 … 1 in steps of 1/64: the same in every format
            found[kind] = _floating((a / 64).to(device, dtype), (b / 64).to(device, dtype))
    if device.type == "cuda" and float8.storage(device):
        found["fp8"] = _float8((a / 64).to(device), (b / 64).to(device))
    return found


def expected_integers(size: int) -> str:
    """Expected digest of the integer sequence, computed on the host in float64 and int64."""
    a, b = _inputs(size)
    product = (a.double() @ b.double()).long()
    return digest([product, _scramble(product)])


def digest(results: list[torch.Tensor]) -> str:
    """SHA-256 over 64-bit sums of the results' words, which are computed on the device of the
    results.

    Each row's words are summed with odd weights modulo 2^64, so that one changed bit always changes
    its row's sum: the change is ±2^k times an odd number, which is not a multiple of 2^64.
    """
    hashed = hashlib.sha256()
    for result in results:
        rows = result.reshape(-1, result.shape[-1]).contiguous()
        words = rows.view(torch.uint8).view(torch.int64)
        weights = torch.arange(1, 2 * words.shape[1], 2, device=words.device)
        hashed.update(array.array("q", (words * weights).sum(1).tolist()).tobytes())
    return hashed.hexdigest()


def model(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else host_info.cpu_model()


def group(device: torch.device, size: int) -> str:
    """Name of the group of devices with comparable bits: model, versions and settings."""
    parts = [model(device), f"torch {torch.__version__}", f"size {size}"]
    if device.type == "cuda":
        from gpuworker.runtime import gpu_inventory

        driver = gpu_inventory.driver_version() or "unknown"
        parts[1:1] = [f"driver {driver}"]
        return " | ".join([*parts, f"CUDA {torch.version.cuda}", f"cuBLASLt {_cublas_version()}"])
    return " | ".join(parts)


def _inputs(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers -63 … 63 as float32: up to size 4226 no sum of their products can reach 2^24, so
    all are exact.
    """
    generator = torch.Generator().manual_seed(20)
    a, b = (torch.randint(-63, 64, (size, size), generator=generator) for _ in "ab")
    return a.float(), b.float()


def _integer(a: torch.Tensor, b: torch.Tensor) -> Sequence:
    def run() -> list[torch.Tensor]:
        product = (a @ b).long()
        return [product, _scramble(product)]

    return run


def _scramble(values: torch.Tensor) -> torch.Tensor:
    """Steps of a 64-bit linear congruential generator (Knuth's MMIX constants): wrap-around
    arithmetic and shifts.
    """
    for _ in range(4):
        values = values * 6364136223846793005 + 1442695040888963407
        values = values ^ (values >> 29)
    return values


def _floating(a: torch.Tensor, b: torch.Tensor) -> Sequence:
    def run() -> list[torch.Tensor]:
        product = a @ b
        scaled = product / a.shape[0] ** 0.5
        curved = torch.nn.functional.gelu(scaled) + scaled.sin() * scaled.abs().sqrt()
        spread = curved.softmax(dim=1)
        return [product, curved, spread, curved.sum(0), (spread * scaled).sum(1)]

    return run


def _float8(a: torch.Tensor, b: torch.Tensor) -> Sequence:
    stored = float8.storage(a.device)
    left, right = a.to(stored), b.to(stored).t()  # the kernel needs the second one by columns
    one = torch.ones((), device=a.device)

    def run() -> list[torch.Tensor]:
        product = float8.product(left, right, one)
        return [product, product.float().sum(0)]

    return run


def _cublas_version() -> str:
    """Version of the cuBLASLt that this process has loaded."""
    with contextlib.suppress(OSError, AttributeError):
        maps = Path("/proc/self/maps").read_text()
        if found := re.search(r"/\S*libcublasLt\.so\S*", maps):
            version = ctypes.CDLL(found[0]).cublasLtGetVersion
            version.restype = ctypes.c_size_t
            return str(version())
    return "unknown"
