"""Xids: what the errors of NVIDIA's driver mean for the hardware, by code.

Source: NVIDIA's Xid catalog (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html,
2025-10), immediate action; in brackets what this table adds. 94 and 63 are contained or repaired,
and the repair needs a reset to take effect.
"""

from __future__ import annotations

RESET = {
    46: "GPU stopped processing", 48: "double bit ECC error", 62: "internal micro-controller halt",
    63: "row remapped, active after a reset", 64: "row remapping failed", 92: "many corrected ECC errors",
    94: "contained memory error", 95: "uncontained memory error", 109: "context switch timeout",
    110: "security fault", 119: "GSP RPC timeout", 120: "GSP error", 140: "unrecovered ECC error",
    143: "GPU initialization error", 154: "GPU recovery action changed", 156: "resource retirement",
    157: "resource retirement failed", 158: "GPU fatal timeout", 169: "internal micro-controller halt",
    171: "details of 48", 172: "details of 48",
}  # fmt: skip
REBOOT = {
    54: "auxiliary power is not connected", 56: "display engine", 57: "display engine", 58: "display engine",
    65: "video processor", 73: "video processor", 79: "GPU has fallen off the bus", 81: "VGA subsystem",
    121: "C2C error", 159: "CHI error", 167: "PCIe fatal timeout", 168: "errors of protected memory",
}  # fmt: skip
NVLINK = {
    74: "NVLink error", 136: "link training failed", 137: "NVLink privilege error", 155: "NVLink, software defined",
    **{code: "NVLink 5" for code in range(144, 151)},
}  # fmt: skip
# 44 and every code of no table above are of a program or a driver's program, or say nothing about
# the hardware.


def judged(code: int, switch: bool = False) -> tuple[str, bool]:
    """The kind of a finding with this code, and whether it means hardware. `switch`: an SXid, of
    an NVSwitch.
    """
    if switch:
        return "xid-nvswitch", True
    for kind, table in (("xid-reset", RESET), ("xid-nvlink", NVLINK), ("xid-reboot", REBOOT)):
        if code in table:
            return kind, True
    return "xid-program", False
