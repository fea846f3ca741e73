"""Places: the device that a finding is about, by its words."""

from __future__ import annotations

import re

from gpuworker.fleet.gpu_identity import GpuIdentity

ARROW = "→"
# A GPU, a link, a GPU that torch does not see, a network port.
LEADING = re.compile(r"(cuda:\d+(?:→cuda:\d+)?|GPU \d+ of the driver|[a-z]\w*\d/\d+(?=: ))(?=[ :]|$)")
DEVICE = re.compile(r"cuda:\d+")
# One rank: what several have at once is about none of them.
RANK = re.compile(r"(?:parameters differ after training: )?rank \d+ \(node \S+, (cuda:\d+)\)(?!, rank)")
VOLUME = re.compile(r"rank \d+ \(node \S+, \S+\): (\S+) \(")  # whichever rank found it first
HANGING = re.compile(r"(?<=\brank )\d+(?= did not arrive at )")


def place_of(finding, gpus: list[GpuIdentity]) -> str:
    """The device of a finding; "" for the whole node."""
    if finding.check == "storage" and (volume := VOLUME.match(finding.reason)):
        return volume[1]
    hanging = HANGING.findall(finding.reason)
    if not finding.device and finding.found_by != "world" and len(hanging) == 1:
        return f"cuda:{hanging[0]}"  # within a node each rank has the GPU of its number
    return finding.device or named_device(finding.reason, gpus)


def named_device(reason: str, gpus: list[GpuIdentity]) -> str:
    """The device that a reason starts with ("cuda:3 is slow: …"), of the rank that it names, or of the UUID or the PCI
    address in it ("Xid 79 of 0000:3b:00")."""
    if found := LEADING.match(reason) or RANK.match(reason):
        return found[1]
    named = [g.device for g in gpus if (g.uuid and g.uuid in reason) or (g.pci and g.pci.partition(".")[0] in reason)]
    return named[0] if len(named) == 1 else ""
