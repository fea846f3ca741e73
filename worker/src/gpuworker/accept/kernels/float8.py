"""8-bit floating point: the number format of the device's hardware, and the product that every
torch from 2.1 on has.

The paths for AMD have not yet run on a GPU.
"""

from __future__ import annotations

import torch


def storage(device: torch.device) -> torch.dtype | None:
    """The format of 4 exponent bits that the device multiplies; None without one.

    AMD's CDNA 3 (gfx94x: MI300X, MI325X) has a variant with another bias, and without negative
    zero; CDNA 4 (gfx95x) has the common one, as NVIDIA has from Ada on. CDNA 2 has none, although
    torch reports capability 9.0 for it.
    """
    if device.type == "cpu":
        return torch.float8_e4m3fn
    if torch.version.hip:
        architecture = torch.cuda.get_device_properties(device).gcnArchName
        known = {"gfx94": torch.float8_e4m3fnuz, "gfx95": torch.float8_e4m3fn}
        return known.get(architecture[:5])
    return torch.float8_e4m3fn if torch.cuda.get_device_capability(device) >= (8, 9) else None


def product(
    a: torch.Tensor, b: torch.Tensor, one: torch.Tensor, fast: bool = False
) -> torch.Tensor:
    """a · b in bfloat16. `b` is stored by columns, `one` is the scale of both, `fast`:
    accumulation in fewer bits.
    """
    found = torch._scaled_mm(
        a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast
    )
    # before torch 2.5 with the largest absolute value
    return found[0] if isinstance(found, tuple) else found
