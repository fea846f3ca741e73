"""Kinds of findings: what to do about each, how dangerous it is, and what it explains.

A finding has a kind, parts and numbers. Its text is for people: no code reads it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from gpuworker.judgement.report import FAIL

RMA, RESEAT, RESET, REBOOT, START, TICKET, CONFIGURE, RETEST, NONE = (
    "RMA", "reseat", "reset", "reboot", "start its pod", "open a ticket", "configure", "test again", "",
)  # fmt: skip
# the most urgent first
VERBS = (RMA, RESEAT, RESET, REBOOT, START, TICKET, CONFIGURE, RETEST, NONE)


class Act(NamedTuple):
    verb: str
    advice: str


class Danger(IntEnum):
    """What a part does to the programs that get it, the worst first."""

    WRONG = 0  # wrong results
    LOST = 1  # programs end
    DAMAGED = 2  # repaired for now, or about to end programs
    SLOW = 3
    SETTING = 4
    UNKNOWN = 5


class Explains(NamedTuple):
    """Which consequences elsewhere on the node a kind may have."""

    slow: bool = False  # what waits for it is slow
    broken: bool = False  # checks could not run or lack numbers
    wrong: bool = False  # wrong data spread to all ranks


NOTHING, SLOWS, BREAKS, SPOILS = (
    Explains(),
    Explains(slow=True),
    Explains(True, True),
    Explains(wrong=True),
)


class Kind(NamedTuple):
    """`act`: None if the check decides (BY_CHECK)."""

    act: Act | None
    danger: Danger = Danger.SETTING
    explains: Explains = NOTHING


NOT_A_PART = "The hardware is not known to be faulty."
REPLACE = Act(
    RMA, "Cordon the node, attach this text to an RMA of the GPU, and test the replacement."
)
RESET_GPU = Act(
    RESET,
    "Drain the node and reset the GPU (nvidia-smi --gpu-reset), or reboot; if it returns, RMA.",
)
POWER_CYCLE = Act(REBOOT, "Power-cycle the node. If the GPU is lost again, reseat it, then RMA.")
FABRIC_MANAGER = Act(REBOOT, "Start the fabric manager, or reboot the node.")
NVSWITCH = Act(
    TICKET,
    "An NVSwitch reported this: read the fabric manager's log, reset all GPUs of the node together; if it returns, "
    "RMA of the baseboard.",
)
NVLINK = Act(
    RESEAT,
    "Reseat the GPU (SXM board or NVLink bridge) and restart the fabric manager; if links stay down, RMA.",
)
PCIE = Act(
    RESEAT, "Reseat the GPU or its riser, clean the contacts; if it comes back narrow or slow, RMA."
)
PORT = Act(
    TICKET,
    "Reseat or replace the cable or transceiver of this network port; then look at the switch's port, then replace "
    "the adapter.",
)
POWER = Act(
    CONFIGURE,
    "Set the power limit back (nvidia-smi --power-limit=WATTS, or what sets it at boot), then test again.",
)
CLOCKS = Act(
    CONFIGURE,
    "Set the clocks back (nvidia-smi --reset-applications-clocks, --reset-gpu-clocks), then test again.",
)
FREE_GPU = Act(RETEST, "Free the GPU from other programs, then test again.")
HEAT = Act(
    TICKET,
    "Check airflow, dust, heat sink and power supply of this slot; compare with the GPUs beside it.",
)
AS_OTHERS = Act(
    CONFIGURE, "Set it as on the other nodes (nvidia-smi, driver, image), then test again."
)
ACCEPT_UNKNOWN = Act(CONFIGURE, "Update driver and nvidia-ml-py, or accept that it is unknown.")
READABLE = Act(CONFIGURE, "Give the pod what it needs to read this, or accept that it is unknown.")
AGAIN = Act(RETEST, f"{NOT_A_PART} Test again: runId with a new value.")
OWNER = Act(TICKET, "Give this text to the owner of the node.")
DISAGREE = Act(
    RETEST, "Two groups of devices disagree: test each against a node that is known to be good."
)
NETWORK = Act(
    TICKET, "Check cable, port and switch of this node's network, then repeat the search."
)
START_POD = Act(
    START,
    "Find out why the pod does not run (kubectl get pods -o wide, kubectl describe node): no free GPU, no image, "
    "taint, or a node that is down.",
)
EXPECTED = Act(
    CONFIGURE,
    "Correct what is expected: nodes (nodes, --expect-nodes) and GPUs of each (gpusPerNode, --gpus).",
)
NO_ACT = Act(NONE, "")
# Of a WARN that would otherwise replace or open something: its numbers are within their limits.
LOOK = Act(
    RETEST,
    "Nothing is proven: look at clocks, heat, power and errors of this part, and test again.",
)
# Of what all GPUs, or all network ports, of a node have, in place of a repair of each of them.
SHARED = Act(
    TICKET,
    "All GPUs of the node have it: look for one cause that they share (BIOS and slot settings, baseboard, driver, "
    "power, cooling), and test again before a part is replaced.",
)
SHARED_PORTS = Act(
    TICKET,
    "All network ports of the node have it: look for one cause that they share (driver of the adapters, subnet "
    "manager, switch, power, BIOS) before a cable is replaced.",
)

WRONG, LOST, DAMAGED, SLOW, SETTING, UNKNOWN = Danger
KINDS = {
    # Wrong results.
    "wrong-product": Kind(REPLACE, WRONG, SPOILS),
    "wrong-memory": Kind(REPLACE, WRONG, SPOILS),
    "wrong-bits": Kind(REPLACE, WRONG, SPOILS),  # of equal computations
    "own-gradient": Kind(REPLACE, WRONG, SPOILS),  # before any communication
    "wrong-words": Kind(NVLINK, WRONG, SPOILS),  # after a copy
    "wrong-sender": Kind(
        Act(
            RESEAT,
            "Several GPUs get wrong data from this one: reseat it (SXM board or NVLink bridge), then RMA.",
        ),
        WRONG, SPOILS,
    ),
    "wrong-elements": Kind(None, WRONG),
    "shared-gradient": Kind(None, WRONG),
    "diverged": Kind(DISAGREE, WRONG),
    "no-majority": Kind(DISAGREE, WRONG),
    "loss": Kind(None, WRONG),
    "volume-bytes": Kind(
        Act(TICKET, "The volume returned other bytes than were written: give this text to the owner of the storage."),
        WRONG,
    ),
    # Programs end.
    "row-remap-failed": Kind(REPLACE, LOST, BREAKS),
    "less-memory": Kind(REPLACE, LOST),
    "ecc": Kind(RESET_GPU, LOST, BREAKS),
    "reset-needed": Kind(RESET_GPU, LOST, BREAKS),
    "reboot-needed": Kind(POWER_CYCLE, LOST, BREAKS),
    "gpu-lost": Kind(POWER_CYCLE, LOST, BREAKS),
    "gpus-missing": Kind(POWER_CYCLE, LOST, BREAKS),
    "driver-hangs": Kind(POWER_CYCLE, LOST),
    "fabric-degraded": Kind(NVSWITCH, LOST, SLOWS),
    "fabric-manager": Kind(FABRIC_MANAGER, LOST, SLOWS),
    "cuda-reset": Kind(RESET_GPU, LOST, BREAKS),  # an error of CUDA that hardware causes
    "cuda-busy": Kind(
        Act(RESET, "No listed program holds the GPU: end leftovers (fuser -v /dev/nvidia*), else reset it."),
        LOST, BREAKS,
    ),
    "cuda-memory": Kind(FREE_GPU, SETTING),
    "cuda-error": Kind(OWNER, UNKNOWN),
    "xid-reset": Kind(RESET_GPU, LOST, BREAKS),
    "xid-reboot": Kind(POWER_CYCLE, LOST, BREAKS),
    "xid-nvlink": Kind(NVLINK, LOST, BREAKS),
    "xid-nvswitch": Kind(NVSWITCH, LOST, BREAKS),
    "xid-program": Kind(
        Act(RETEST, "A program may cause this: see which one ran, then test the idle GPU again."), UNKNOWN, BREAKS
    ),
    "port-down": Kind(PORT, LOST, SLOWS),
    "port-missing": Kind(
        Act(TICKET, "Look for the adapter of this network port on the bus (lspci): reseat it, then replace it."),
        LOST, SLOWS,
    ),
    "port-errors": Kind(PORT, DAMAGED),
    # Repaired for now.
    "pcie-errors": Kind(PCIE, DAMAGED, SLOWS),
    "nvlink-errors": Kind(NVLINK, DAMAGED, SLOWS),
    "nvlink-down": Kind(NVLINK, DAMAGED, SLOWS),
    # Slow.
    "slow": Kind(None, SLOW, SLOWS),  # than its peers on the node
    "limit": Kind(None, SLOW, SLOWS),  # on the wrong side of a limit
    "outlier": Kind(None, SLOW, SLOWS),  # worse than the fleet
    "baseline": Kind(None, SLOW, SLOWS),  # worse than in an earlier run
    "stall": Kind(
        Act(
            TICKET,
            "Read clocks, power and Xids of this GPU over some minutes (nvidia-smi dmon); if they are right, RMA.",
        ),
        SLOW, SLOWS,
    ),
    "slow-rank": Kind(None, SLOW, SLOWS),
    "late-rank": Kind(
        Act(TICKET, "Check CPU binding and load of the host and the network of this rank, then test again."),
        SLOW, SLOWS,
    ),
    "slowdown": Kind(HEAT, SLOW, SLOWS),
    "pcie": Kind(PCIE, SLOW, SLOWS),
    "port-slow": Kind(PORT, SLOW, SLOWS),
    "bad-node": Kind(NETWORK, SLOW),
    "bad-link": Kind(NETWORK, SLOW),
    "far-adapter": Kind(
        Act(TICKET, "Compare the slots of GPUs and network adapters with those of a node that is right."), SLOW
    ),
    # Settings.
    "power-capped": Kind(POWER, SETTING, SLOWS),  # of one GPU
    "power-differs": Kind(POWER, SETTING, SLOWS),  # between the GPUs of a node
    "clocks-set": Kind(CLOCKS, SETTING, SLOWS),
    "other-program": Kind(FREE_GPU, SETTING, SLOWS),
    "setting": Kind(AS_OTHERS),
    "differ": Kind(AS_OTHERS),  # between the GPUs of a node
    "drift": Kind(AS_OTHERS),  # from the other nodes
    "clock": Kind(AS_OTHERS),  # of the node
    "nvls-off": Kind(FABRIC_MANAGER, SETTING, SLOWS),
    "gpus-divided": Kind(
        Act(RETEST, "Test nodes whose GPUs are not divided, or each instance in a pod of its own.")
    ),
    "no-gpu-direct": Kind(
        Act(CONFIGURE, "Load nvidia_peermem on the node (modprobe nvidia_peermem), or install the open kernel module.")
    ),
    "far-cpus": Kind(
        Act(CONFIGURE, "Give the pod CPUs of every socket (cpuset, CPU manager, Topology Manager), then test again.")
    ),
    "volume-full": Kind(
        Act(CONFIGURE, "Free or enlarge the volume; the hardware is not at fault.")
    ),
    "volume": Kind(None),
    "bad-limit": Kind(Act(CONFIGURE, "Correct the limit in the values (limits), then test again.")),
    "damaged-report": Kind(Act(RETEST, "This report cannot be read: look at the file, then test the node again.")),
    # What is not known.
    "not-arrived": Kind(
        Act(TICKET, "Look at the GPU of the rank that did not arrive: Xids, heat, its process; test that GPU alone."),
        UNKNOWN,
    ),
    "check-failed": Kind(AGAIN, UNKNOWN),  # it ended without evidence
    "not-run": Kind(AGAIN, UNKNOWN),
    "missing": Kind(AGAIN, UNKNOWN),  # a number, a fingerprint
    "half-tested": Kind(FREE_GPU, UNKNOWN),
    "unlisted": Kind(ACCEPT_UNKNOWN, UNKNOWN),  # by the driver
    "unknown": Kind(ACCEPT_UNKNOWN, UNKNOWN),
    "unreadable": Kind(READABLE, UNKNOWN),
    "no-figure": Kind(NO_ACT, UNKNOWN),
    "impossible": Kind(AGAIN, UNKNOWN),  # a number
    "contradiction": Kind(AGAIN, UNKNOWN),  # of two facts of a report, or with what was requested
    "copy": Kind(AGAIN, UNKNOWN),
    "foreign": Kind(EXPECTED, UNKNOWN),
    "nodes-expected": Kind(EXPECTED, UNKNOWN),
    "no-report": Kind(START_POD, UNKNOWN),
    "no-world": Kind(
        Act(RETEST, "Wait; if it stays, kubectl logs of the container world on these nodes name the reason."), UNKNOWN
    ),
    "testing": Kind(
        Act(RETEST, "Wait; if it stays, kubectl logs and kubectl describe of this pod name the reason."), UNKNOWN
    ),
    "pod-gone": Kind(
        Act(START, "Find out what ended the pod (kubectl describe node), then test again."), UNKNOWN
    ),
    "image": Kind(
        Act(CONFIGURE, "Correct the image, its registry or the pull secret (image, imagePullSecrets)."), UNKNOWN
    ),
    "out-of-memory": Kind(Act(CONFIGURE, "Give the tests more memory (resources), then test again."), UNKNOWN),
    "pods-not-listed": Kind(
        Act(CONFIGURE, "Let the page list pods (Role, RoleBinding, egress of networkPolicy), or unset fleet.listPods."),
        UNKNOWN,
    ),
}  # fmt: skip

# Of kinds without an act of their own, by number, then by check.
BY_MEASURE = {"link_h2d": PCIE, "link_d2h": PCIE, "link_both": PCIE, "link_peer": NVLINK}
BY_CHECK = {
    "compute": Act(
        TICKET, "Slower than its model: check heat, power and clocks; if all are right, RMA."
    ),
    "host": Act(
        TICKET,
        "Look for other programs on the CPUs; then compare memory modules, clocks and heat with another node.",
    ),
    "memory": Act(RETEST, "Slow memory without an error: test again once; if it stays slow, RMA."),
    "links": Act(RESEAT, "Reseat the GPU, then measure its links again."),
    "training": Act(TICKET, "Compare this GPU with the others: power, cooling, CPU binding."),
    "collectives": Act(TICKET, "Check NVLinks and network of the GPUs named here."),
    "correctness": Act(RETEST, "Run the check again on this node alone; if it fails alone, RMA."),
    "stragglers": Act(TICKET, "Check clocks, heat and CPU binding of the rank named here."),
    "storage": Act(TICKET, "Compare the mount and the disk with those of other nodes."),
    "bad_nodes": Act(TICKET, "Check cable, port and switch of the nodes named here."),
}
OTHERWISE = Act(
    TICKET, "Compare heat, power, clocks and cabling with a device that is at the median."
)

# what shows that a part is slow, and not why
SLOWER = ("slow", "limit", "outlier", "baseline", "slow-rank")
# checks whose speed is a matter of clocks
POWERED = ("compute", "memory", "training", "stragglers")
# settings that are more of a reason than the slowness
WHY_SLOW = ("power-capped", "clocks-set", "other-program")


def act_of(kind: str, check: str, measure: str = "", verdict: str = FAIL) -> Act:
    """What to do about a finding. Only a FAIL sends a part back, or opens a node for a number
    alone.
    """
    own = KINDS[kind].act
    found = own or BY_MEASURE.get(measure) or BY_CHECK.get(check, OTHERWISE)
    if verdict != FAIL and found.verb in ((RMA,) if own else (RMA, RESEAT)):
        return LOOK
    return found


def urgency(act: Act) -> int:
    """Smaller is more urgent."""
    return VERBS.index(act.verb)
