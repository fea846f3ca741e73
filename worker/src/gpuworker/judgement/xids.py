"""Xids: what the errors of NVIDIA's driver mean for the hardware, by code.

Source: NVIDIA's Xid catalog (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html,
2025-10), immediate action; in brackets what this table adds. 94 and 63 are contained or repaired,
and the repair needs a reset to take effect.
"""

from __future__ import annotations

# 46 GPU stopped, 48 double bit ECC error, 62 micro-controller halt, 63 row remapped, 64 remapping
# failed, 92 many corrected errors, 94 contained and 95 uncontained memory error, 109 context switch
# timeout, 110 security fault, 119 and 120 GSP, 140 unrecovered ECC error, 143 initialization error,
# 154 recovery action changed, 156 and 157 resource retirement, 158 fatal timeout, 169 halt, 171 and
# 172 details of 48
RESET = (
    46, 48, 62, 63, 64, 92, 94, 95, 109, 110, 119, 120, 140, 143, 154, 156, 157, 158, 169, 171, 172
)  # fmt: skip
# 54 auxiliary power, 56 to 58 display engine, 65 and 73 video processor, 79 fallen off the bus, 81
# VGA, 121 C2C error, 159 CHI error, 167 PCIe fatal timeout, 168 protected memory
REBOOT = 54, 56, 57, 58, 65, 73, 79, 81, 121, 159, 167, 168
# 74 NVLink error, 136 link training failed, 137 privilege error, 155 software defined, the others
# are of NVLink 5
NVLINK = 74, 136, 137, 155, *range(144, 151)
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
