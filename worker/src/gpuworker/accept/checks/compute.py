"""Matrix products on every device of the node are right, and as fast as the model should be."""

from __future__ import annotations

import statistics
import time

from gpuworker.accept.registry import Evidence, Measure, Plan, Spec
from gpuworker.accept.report import Measurement

SPEC = Spec(
    tag="COMPUTE",
    seconds={"quick": 6, "full": 60, "burn-in": 600},
    measures={"gemm_fp32": Measure("TFLOP/s", "float32 products without TF32", limit="gemm_fp32")},
    faults={"flipped-bit-product": r"(cpu|cuda:\d+): \d+ of \d+ sampled products are wrong"},
)


def measure(plan: Plan, size: int = 1024, repeats: int = 10) -> Evidence:
    """TFLOP/s = 2·n³ / median time / 1e12 for n×n matrices. Right means: sampled rows agree with the same product in
    float64 within n·eps·‖row‖‖column‖, the textbook bound for a dot product of n terms (Higham, Accuracy and
    Stability of Numerical Algorithms, §3.1).
    """
    import torch

    evidence = Evidence()
    for name in plan.devices:
        device = torch.device(name)
        generator = torch.Generator().manual_seed(0)
        a, b = (torch.randn(size, size, generator=generator) for _ in range(2))
        a_there, b_there = a.to(device), b.to(device)
        product = a_there @ b_there  # also the warm-up
        if plan.injected("flipped-bit-product"):
            product.view(torch.int32)[64, 3] ^= 1 << 30
        rows = torch.arange(0, size, 64)
        exact = a[rows].double() @ b.double()
        bound = size * torch.finfo(torch.float32).eps * torch.outer(a[rows].norm(dim=1), b.norm(dim=0)).double()
        right = (product[rows.to(device)].cpu().double() - exact).abs() <= bound
        wrong = int((~right).sum())  # NaN is wrong too
        if wrong:
            evidence.wrong.append(f"{name}: {wrong} of {exact.numel()} sampled products are wrong")
        times = [_timed(lambda x=a_there, y=b_there: x @ y, device) for _ in range(repeats)]
        tflops = 2 * size**3 / statistics.median(times) / 1e12
        evidence.measurements.append(Measurement("gemm_fp32", tflops, "TFLOP/s", name))
    return evidence


def _timed(action, device) -> float:
    """Seconds of one call, the device's queue included."""
    import torch

    start = time.perf_counter()
    action()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
