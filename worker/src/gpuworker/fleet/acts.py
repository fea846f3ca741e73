"""Acts: what to do about a finding. One table, the most urgent act first."""

from __future__ import annotations

import re
from typing import NamedTuple

from gpuworker.accept.report import FAIL

RMA, RESEAT, RESET, REBOOT, START, TICKET, CONFIGURE, RETEST = (
    "RMA", "reseat", "reset", "reboot", "start its pod", "open a ticket", "configure", "test again",
)  # fmt: skip
VERBS = (RMA, RESEAT, RESET, REBOOT, START, TICKET, CONFIGURE, RETEST)


class Act(NamedTuple):
    """`pattern` is searched in the reason of a finding; "" stands for all other findings of `where`."""

    verb: str
    advice: str
    pattern: str = ""
    where: str = ""  # name of a check, or found_by of a finding


REPLACE = "Cordon the node, attach this text to an RMA of the GPU, and test the replacement."
POWER = Act(
    CONFIGURE, "Set the power limit back (nvidia-smi --power-limit=WATTS, or what sets it at boot), then test again.",
    r"power is capped|power limit is|GPUs differ in power limit",
)  # fmt: skip
CAPPED = re.compile(r"power is capped at|power limit is \S+ W")  # of one GPU
SLOW = re.compile(r" is slow: |% worse than|is (below|above) the (warning )?limit")
POWERED = ("compute", "memory", "training", "stragglers")  # checks whose speed is a matter of clocks
# Of a WARN that would otherwise replace or open something: its numbers are within their limits.
LOOK = Act(RETEST, "Nothing is proven: look at clocks, heat, power and errors of this part, and test again.")
# Of what all GPUs of a node have, in place of a repair of each of them.
SHARED = Act(TICKET, "All GPUs of the node have it: look for one cause that they share (BIOS and slot settings, "
    "baseboard, driver, power, cooling), and test again before a part is replaced.")  # fmt: skip
# Of all network ports of a node, in place of a cable for each of them.
SHARED_PORTS = Act(TICKET, "All network ports of the node have it: look for one cause that they share (driver of the "
    "adapters, subnet manager, switch, power, BIOS) before a cable is replaced.")  # fmt: skip
NOT_A_PART = "The hardware is not known to be faulty."

# By the words of the reason. The first row that matches counts.
TABLE = (
    POWER,
    Act(CONFIGURE, "Update driver and nvidia-ml-py, or accept that it is unknown.", r"driver does not report"),
    Act(RMA, REPLACE, r"could not remap a bad row|memory at byte 0x|returned wrong values"),
    Act(RMA, REPLACE, r"products are wrong|row \d+ and column \d+ are wrong|integer arithmetic gave a wrong"),
    Act(RMA, REPLACE, r"gave other bits than|has other bits than|differs from \d+ of \d+ devices"),
    Act(RMA, REPLACE, r"its own gradient, before any communication, differs"),
    Act(TICKET, "An NVSwitch reported this: read the fabric manager's log, reset all GPUs of the node together; if it "
        "returns, RMA of the baseboard.", r"SXid \d+|of its fabric|its fabric recovers"),
    Act(RESEAT, "Reseat the GPU or its riser, clean the contacts; if it comes back narrow or slow, RMA.",
        r"PCIe is ×\d+ wide|PCIe link of|PCIe can do|claims that its links|PCIe replays|PCIe ran (at|×)|"
        r"is slow: link_(h2d|d2h)|link_(h2d|d2h|both) \S+ GB/s is"),
    Act(RESEAT, "Reseat the GPU (SXM board or NVLink bridge) and restart the fabric manager; if links stay down, RMA.",
        r"Xid (74|14[4-9]|150) |NVLinks are up|NVLink errors|"
        r"\d+ NVLinks, other GPUs|link_peer|delivered \d+ wrong words|words differ after a copy"),
    Act(RESET, "Drain the node and reset the GPU (nvidia-smi --gpu-reset), or reboot; if it returns, RMA.",
        r"Xid (48|63|64|92|94|95|140) |"
        r"not yet remapped|not yet retired|uncorrectable memory errors|[rR]eset (it|the GPU)"),
    Act(RETEST, "Test nodes whose GPUs are not divided, or each instance in a pod of its own.",
        r"MIG is on: CUDA shows one"),
    Act(REBOOT, "Power-cycle the node. If the GPU is lost again, reseat it, then RMA.",
        r"the driver demands|"
        r"driver has lost it|Xid \d+|fallen off the bus|torch sees|GPUs seen|cannot be killed|driver hangs|is lost"),
    Act(REBOOT, "Start the fabric manager, or reboot the node.", r"fabric manager"),
    Act(TICKET, "Reseat or replace the cable or transceiver of this network port; then look at the switch's port, then "
        "replace the adapter.", r"this network port"),
    Act(CONFIGURE, "Load nvidia_peermem on the node (modprobe nvidia_peermem), or install the open kernel module.",
        r"cannot reach the memory of GPUs"),
    Act(CONFIGURE, "Give the pod CPUs of every socket (cpuset, static CPU manager, Topology Manager), then test again.",
        r"may not use any CPU of its NUMA node"),
    Act(TICKET, "Compare the slots of GPUs and network adapters with those of a node that is right.",
        r"nearest network adapter"),
    Act(TICKET, "Read clocks, power and Xids of this GPU over some minutes (nvidia-smi dmon); if they are right, RMA.",
        r"cuda:\d+ stalls: "),
    Act(TICKET, "Check airflow, dust, heat sink and power supply of this slot; compare with the GPUs beside it.",
        r"thermal|°C|power brake|slowdown"),
    Act(RESEAT, "Several GPUs get wrong data from this one: reseat it (SXM board or NVLink bridge), then RMA.",
        r"what it sent arrived wrong"),
    Act(TICKET, "Check cable, port and switch of this node's network, then repeat the search.",
        r"is bad: with|the link between|is late: the others wait"),
    Act(TICKET, "Look at the GPU of the rank that did not arrive: Xids, heat, its process; test that GPU alone.",
        r"did not arrive at"),
    Act(CONFIGURE, "Free or enlarge the volume; the hardware is not at fault.", r": full while|No space left"),
    Act(TICKET, "The volume returned other bytes than were written: give this text to the owner of the storage.",
        r"was read is not what was written|checkpoint that it read"),
    Act(CONFIGURE, "Set it as on the other nodes (nvidia-smi, driver, image), then test again.",
        r"application clocks|ECC is off|MIG is on|GPUs differ in|is required|/dev/shm|"
        r"compute mode prohibits|nodes with the same GPUs have|clock is not synchronised|in the future"),
    Act(CONFIGURE, "Give the pod what it needs to read this, or accept that it is unknown.",
        r"cannot be read here|is unknown|neither NVML nor nvidia-smi|cannot be read"),
    Act(CONFIGURE, "Set a limit for this model (limits), or rely on the comparison with the fleet.", r"no figure for"),
    Act(RETEST, "Free the GPU from other programs, then test again.", r"another program uses|MPS shares the GPUs"),
    Act(RETEST, "Two groups of devices disagree: test each against a node that is known to be good.",
        r"has no majority|without a majority|with no majority|parameters differ"),
    Act(CONFIGURE, "Correct the image, its registry or the pull secret (image, imagePullSecrets).",
        r"ErrImage|ImagePullBackOff|InvalidImageName"),
    Act(CONFIGURE, "Give the tests more memory (resources), then test again.", r"OOMKilled"),
    Act(REBOOT, "Look at the node (kubectl describe node): reboot it if it is down.", r"is the node down\?"),
    Act(CONFIGURE, "Let the page list pods (Role, RoleBinding, egress of networkPolicy), or unset fleet.listPods.",
        r"pods cannot be listed"),
    Act(RETEST, "Wait; if it stays, kubectl logs and kubectl describe of this pod name the reason.",
        r"runs and has no report yet"),
    Act(START, "Find out why the pod does not run (kubectl get pods -o wide, kubectl describe node): no free GPU, "
        "no image, taint, or a node that is down.", r"no (new )?report( received from this expected|:)|"
        r"expected nodes reported|^pod \S+ (is|was|does not)"),
    Act(START, "Find out what ended the pod (kubectl describe node), then test again.", r"pod no longer exists"),
    Act(CONFIGURE, "Correct nodes (--expect-nodes): number or names of the nodes of this fleet.",
        r"number of nodes is not set|more than the \d+ expected|not one of the expected nodes"),
)  # fmt: skip

# For findings that no row of TABLE knows, by check, then by found_by.
OTHERWISE = (
    Act(TICKET, "Slower than its model: check heat, power and clocks; if all are right, RMA.", where="compute"),
    Act(TICKET, "Look for other programs on the CPUs; then compare memory modules, clocks and heat with another node.",
        where="host"),
    Act(RMA, REPLACE, where="memory"),
    Act(RESEAT, "Reseat the GPU, then measure its links again.", where="links"),
    Act(RMA, REPLACE, where="repeatability"),
    Act(TICKET, "Compare this GPU with the others: power, cooling, CPU binding.", where="training"),
    Act(TICKET, "Check NVLinks and network of the GPUs named here.", where="collectives"),
    Act(RETEST, "Run the check again on this node alone; if it fails alone, RMA.", where="correctness"),
    Act(TICKET, "Check clocks, heat and CPU binding of the rank named here.", where="stragglers"),
    Act(TICKET, "Compare the mount and the disk with those of other nodes.", where="storage"),
    Act(TICKET, "Check cable, port and switch of the nodes named here.", where="bad_nodes"),
    Act(TICKET, "Give this text to the owner of the node.", where="environment"),
    Act(RETEST, f"{NOT_A_PART} Test again: runId with a new value.", where="coverage"),
    Act(TICKET, "Compare heat, power, clocks and cabling with a device that is at the median.", where="fleet"),
    Act(TICKET, "Find out what changed since the baseline: driver, firmware, heat, power.", where="baseline"),
    Act(RMA, REPLACE, where="fingerprint"),
    Act(TICKET, "Give this text to the owner of the node.", where="node"),
    Act(TICKET, "Give this text to the owner of the nodes.", where="world"),
)  # fmt: skip
_PATTERNS = [(re.compile(act.pattern), act) for act in TABLE]
_OTHERWISE = {act.where: act for act in OTHERWISE}


def act_for(check: str, found_by: str, reason: str, verdict: str = FAIL) -> Act:
    """The act for a finding. Only a FAIL sends a GPU back, or opens a node for a reason that no row names."""
    named = next((act for pattern, act in _PATTERNS if pattern.search(reason)), None)
    found = named or (
        (found_by == "coverage" and _OTHERWISE["coverage"]) or _OTHERWISE.get(check) or _OTHERWISE[found_by]
    )
    return LOOK if verdict != FAIL and found.verb in ((RMA,) if named else (RMA, RESEAT)) else found


def is_of_power(check: str, reason: str) -> bool:
    """Whether less power alone may be the cause of a finding."""
    return check in POWERED and bool(SLOW.search(reason))


def urgency(act: Act) -> int:
    """Smaller is more urgent."""
    return VERBS.index(act.verb)
