"""Matrix product on one device with its verification, which checks/compute.py explains."""

from __future__ import annotations

import os

import torch

from gpuworker.accept.kernels import float8

STORED = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}  # of fp8: see float8.py
EPS32 = torch.finfo(torch.float32).eps
# Of the result; for TF32 of the inputs, which have 10 bits of mantissa.
EPS = {
    "fp32": EPS32,
    "tf32": 2**-10,
    "bf16": torch.finfo(torch.bfloat16).eps,
    "fp16": torch.finfo(torch.float16).eps,
    "fp8": torch.finfo(torch.bfloat16).eps,
}
SAMPLES = 64  # rows and columns
OUTLIER_FACTOR = 20  # of the median of all lines; normal errors are far below


def precision(kind: str) -> None:
    """Allow or forbid TF32 in float32 products of this process.

    NVIDIA's images enable TF32 by environment variables, which would override the call.
    """
    for name in ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE"):
        os.environ.pop(name, None)
    if torch.version.hip:
        # without it, AMD's library computes TF32 in float32
        os.environ["HIPBLASLT_ALLOW_TF32"] = "1"
    torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")


class Product:
    """out = a · b of n×n standard normal values, rounded to the format of `kind`. n is a
    multiple of 64.
    """

    def __init__(self, kind: str, size: int, device: torch.device, seed: int = 0) -> None:
        generator = torch.Generator(device).manual_seed(seed)
        self.kind, self.size, self.device = kind, size, device
        stored = float8.storage(device) if kind == "fp8" else STORED[kind]
        self.a, self.b = (
            torch.randn(size, size, device=device, generator=generator).to(stored) for _ in "ab"
        )
        if kind == "fp8":
            self.b = self.b.t().contiguous().t()  # the memory order that the kernel needs
        self.signs = (
            torch.randint(0, 2, (size,), device=device, generator=generator).double() * 2 - 1
        )
        a, b = self.a.double(), self.b.double()
        self.row_sums, self.column_sums = a @ (b @ self.signs), (self.signs @ a) @ b
        self.rows = torch.arange(0, size, size // SAMPLES)
        self.columns = self.rows + size // SAMPLES // 2
        # the host computes the reference, not the device under test
        rows = a[self.rows.to(device)].cpu()
        columns = b[:, self.columns.to(device)].cpu()
        self.exact = rows @ columns
        norms = torch.outer(rows.norm(dim=1), columns.norm(dim=0))
        self.bound = 4 * EPS[kind] * (self.exact.abs() + norms / size**0.5) + 2 * EPS32 * norms
        self.one = torch.ones((), device=device)
        self.out = torch.empty(0)
        self.first: torch.Tensor | None = None  # the first correct result

    def multiply(self) -> None:
        if self.kind == "fp8":
            self.out = float8.product(self.a, self.b, self.one, fast=True)
        else:
            self.out = self.a @ self.b

    def errors(self) -> list[str]:
        """Errors in `out` as texts; empty if it is correct. NaN is an error."""
        if self.first is not None:  # the same product on the same device has the same bits
            differs = self.out != self.first
            return _position(*(differs.any(axis).nonzero().flatten().tolist() for axis in (1, 0)))
        found = []
        if off := int((~((self._sampled() - self.exact).abs() <= self.bound)).sum()):
            found.append(f"{off} of {self.exact.numel()} sampled products are wrong")
        out = self.out.double()
        found += _position(
            _outliers(out @ self.signs - self.row_sums),
            _outliers(self.signs @ out - self.column_sums),
        )
        if not found:
            self.first = self.out.clone()
        return found

    def is_tf32(self) -> bool:
        """Whether float32 was computed as TF32, whose error is 1000 times larger. This is not a
        fault of the GPU.
        """
        error = (self._sampled() - self.exact).norm() / self.exact.norm()
        return self.kind == "fp32" and 5e-5 < float(error) < 5e-3

    def _sampled(self) -> torch.Tensor:
        return self.out[self.rows.to(self.device)][:, self.columns.to(self.device)].cpu().double()


def _position(rows: list[int], columns: list[int]) -> list[str]:
    if not rows or not columns:
        return []
    more = (
        ""
        if len(rows) == len(columns) == 1
        else f" ({len(rows)} rows and {len(columns)} columns in all)"
    )
    return [f"row {rows[0]} and column {columns[0]} are wrong{more}"]


def _outliers(residual: torch.Tensor) -> list[int]:
    """Indices of the lines with a residual far above the median."""
    size = residual.abs()
    usual = size.nanmedian()
    return (~(size <= OUTLIER_FACTOR * usual)).nonzero().flatten().tolist()
