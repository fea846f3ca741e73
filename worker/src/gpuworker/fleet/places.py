"""Places: the device that a finding is about, by its words."""

from __future__ import annotations

import re

from gpuworker.fleet.gpu_identity import GpuIdentity

ARROW = "→"
LEADING = re.compile(r"(cuda:\d+(?:→cuda:\d+)?|[a-z]\w*\d/\d+(?=: ))(?=[ :]|$)")  # a GPU, a link, a network port
DEVICE = re.compile(r"cuda:\d+")
RANK = re.compile(r"rank \d+ \(node \S+, (cuda:\d+)\)")


def named_device(reason: str, gpus: list[GpuIdentity]) -> str:
    """The device that a reason starts with ("cuda:3 is slow: …"), of the rank that it names, or of the UUID or the PCI
    address in it ("Xid 79 of 0000:3b:00")."""
    if found := LEADING.match(reason) or RANK.match(reason):
        return found[1]
    named = [g.device for g in gpus if (g.uuid and g.uuid in reason) or (g.pci and g.pci.partition(".")[0] in reason)]
    return named[0] if len(named) == 1 else ""
