"""Matrix products of every number format are correct on every GPU, and as fast as on its peers.

All GPUs of the node run at the same time: they share power, cooling and the host. The numbers are
TFLOP/s = 2·n³ / median time / 1e12 of n×n matrices of normal random values (zeros would draw less
power), with the L2 cache overwritten before each product. A product is correct if

- 64×64 sampled elements agree with the same product in float64 on the host within 4·eps·(|exact|
  + ‖row‖‖column‖/√n) + 2·eps32·‖row‖‖column‖, where eps is that of the format of the result: its
  rounding and that of partial sums, and the accumulation in float32. Errors of random data grow
  with √n, not n (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019):
  float32 that ran as TF32 is outside.
- no row and no column is an outlier in C·x = A·(B·x) with random signs x in float64 on the device
  (Freivalds' check): this covers every element of C of the first product.
- all later products have the bits of the first, after each batch.
"""

from __future__ import annotations

import itertools

from gpuworker.judgement import peer_comparison
from gpuworker.judgement.check_spec import Measure, Plan, Spec
from gpuworker.judgement.report import Evidence

FORMATS = {
    "fp32": "float32 without TF32",
    "tf32": "float32 inputs rounded to TF32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp8": "8-bit floating point with bfloat16 results (torch._scaled_mm, fast accumulation)",
}
SPEC = Spec(
    tag="COMPUTE",
    seconds={"quick": 8, "full": 90, "burn-in": 600, "prolog": 4},
    measures={
        f"gemm_{kind}": Measure(
            "TFLOP/s",
            f"products of {words}",
            limit=f"gemm_{kind}",
            optional=kind not in ("fp32", "fp16"),
        )
        for kind, words in FORMATS.items()
    },
    prolog=("gemm_bf16", "gemm_fp16"),  # every GPU has one of them
    faults={
        "slow-gpu": "slow",
        "flipped-bit-product": "wrong-product",
        "nan-product": "wrong-product",
        "wrong-products": "wrong-product",
        "stalling-gpu": "stall",
        "hot-gpu": "slowdown",
    },
)
BATCH = {"cuda": 50, "cpu": 2}  # products between two verifications: many keep GPUs under load
REHEARSAL_S = 1.0


def measure(plan: Plan) -> Evidence:
    from gpuworker.accept.kernels import timing
    from gpuworker.runtime import gpu_telemetry

    evidence = Evidence()
    devices = timing.test_devices(plan)
    asked = [kind for kind in FORMATS if f"gemm_{kind}" in SPEC.measures_at(plan.level)]
    kinds = [kind for kind in asked if any(_has(kind, device) for device in devices)]
    evidence.inapplicable = {
        f"gemm_{kind}": f"no {kind} on "
        f"{'the CPU of a rehearsal' if plan.device == 'cpu' else 'these GPUs'}"
        for kind in asked
        if kind not in kinds and devices
    }
    budget_s = 0.6 * plan.budget_s(REHEARSAL_S) / max(len(kinds), 1)
    with gpu_telemetry.Sampler(timing.uuids(plan)) as sampler:
        for kind in kinds:
            _measure_kind(
                kind, [device for device in devices if _has(kind, device)], budget_s, plan, evidence
            )
    readings = sampler.readings
    if plan.injected("hot-gpu"):
        readings = [*readings, gpu_telemetry.Reading(str(devices[-1]), 800, 95, 300.0, 0x40, None)]
    if readings or plan.device == "cuda":
        evidence.facts["telemetry"] = gpu_telemetry.summary(readings)
    evidence.facts["telemetry_problem"] = sampler.problem
    return evidence


def problems(evidence: Evidence, plan: Plan) -> None:
    from gpuworker.runtime import gpu_telemetry

    if plan.device == "cuda":
        telemetry, watched = evidence.facts["telemetry"], plan.devices
    else:
        telemetry, watched = evidence.facts.get("telemetry", {}), []
    for device, words in gpu_telemetry.unwatched(
        telemetry, watched, evidence.facts.get("telemetry_problem", "")
    ):
        evidence.warn("unlisted", f"{device}: {words}", device)
    for device, words in gpu_telemetry.slowed(telemetry):
        evidence.warn("slowdown", f"{device}: {words}", device)
    peer_comparison.problems(evidence, plan, *SPEC.measures, stalls=True)


def _measure_kind(
    kind: str, devices: list, budget_s: float, plan: Plan, evidence: Evidence
) -> None:
    from gpuworker.accept.kernels import timing
    from gpuworker.accept.kernels.gemm import Product, precision

    precision(kind)
    name, size = f"gemm_{kind}", _size(kind, plan)
    products = timing.run_on_all(devices, lambda device: Product(kind, size, device))
    cold = timing.run_on_all(devices, timing.cold_buffer)
    faulty, calls = devices[-1], itertools.count()
    reported: set[tuple] = set()

    def run(device) -> None:
        products[device].multiply()
        if device == faulty and (
            plan.injected("slow-gpu") or (plan.injected("stalling-gpu") and next(calls) % 5 < 2)
        ):
            timing.hold_stream(device)

    def batch(device) -> list[float]:
        found = timing.seconds(lambda: run(device), device, BATCH[plan.device], cold[device])
        if device == faulty:
            _break(products[device], plan)
        errors = products[device].errors()
        for text in errors:
            if (device, text) not in reported:
                evidence.fail("wrong-product", f"{device}: {name}: {text}", device, measure=name)
        reported.update((device, text) for text in errors)
        return found

    timing.run_on_all(devices, lambda device: products[device].multiply())
    if forced := [str(device) for device in devices if products[device].is_tf32()]:
        names = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE and NVIDIA_TF32_OVERRIDE"
        words = f"{', '.join(forced)}: float32 ran as TF32: unset {names} where Python is started"
        evidence.incomplete("setting", words, *forced)
        return
    taken = timing.batches(devices, batch, budget_s)
    work = 2 * size**3 / 1e12
    peer_comparison.record(evidence, name, "TFLOP/s", work, taken, plan.device, True)


def _has(kind: str, device) -> bool:
    """Whether the device computes the format in hardware. The CPU runs the two formats that it
    is fast enough for.
    """
    import torch

    from gpuworker.accept.kernels import float8

    if device.type == "cpu":
        return kind in ("fp32", "bf16")
    if kind == "fp8":
        return float8.storage(device) is not None
    since = {"fp32": (0, 0), "fp16": (7, 0), "tf32": (8, 0), "bf16": (8, 0)}  # compute capability
    return torch.cuda.get_device_capability(device) >= since[kind]


def _size(kind: str, plan: Plan) -> int:
    if plan.device == "cpu":
        return 256
    return 4096 if kind == "fp32" else 8192


def _break(product, plan: Plan) -> None:
    """Inject the fault into the last result."""
    out, row = product.out, product.size // 2 + 3  # in no sampled row
    if plan.injected("flipped-bit-product"):
        import torch

        # a bit of the exponent
        word, bit = {4: (torch.int32, 29), 2: (torch.int16, 13)}[out.element_size()]
        out.view(word)[row, out[row].abs().argmax()] ^= 1 << bit
    if plan.injected("nan-product"):
        out[row, 1] = float("nan")
    if plan.injected("wrong-products"):
        out += 0.5 * product.size**0.5
