"""Kinds of findings: what to do about each, how dangerous it is, and what it explains.

A finding has a kind, parts and numbers. Its text is for people: no code reads it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from gpuworker.judgement.report import FAIL

RMA, RESEAT, RESET, REBOOT, START, TICKET, CONFIGURE, RETEST, WAIT, NONE = (
    "RMA", "reseat", "reset", "reboot", "start its pod", "open a ticket", "configure", "test "
    "again", "wait", "",
)  # fmt: skip
# the most urgent first
VERBS = (RMA, RESEAT, RESET, REBOOT, START, TICKET, CONFIGURE, RETEST, WAIT, NONE)


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


# Consequences of a kind elsewhere on the node: what waits for it is slow, checks could
# not run or lack numbers, wrong data spread to all ranks.
SLOWS, BREAKS, SPOILS = ("slow",), ("slow", "broken"), ("wrong",)


class Kind(NamedTuple):
    """`title`: in a few words, of the part. `act`: None if the check decides (BY_CHECK)."""

    danger: Danger
    title: str
    act: Act | None
    explains: tuple[str, ...] = ()


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
    "An NVSwitch reported this: read the fabric manager's log, reset all GPUs of the node "
    "together; if it returns, RMA of the baseboard.",
)
NVLINK = Act(
    RESEAT,
    "Reseat the GPU (SXM board or NVLink bridge) and restart the fabric manager; if links stay "
    "down, RMA.",
)
PCIE = Act(
    RESEAT, "Reseat the GPU or its riser, clean the contacts; if it comes back narrow or slow, RMA."
)
PORT = Act(
    TICKET,
    "Reseat or replace the cable or transceiver of this network port; then look at the switch's "
    "port, then replace the adapter.",
)
POWER = Act(
    CONFIGURE,
    "Set the power limit back (nvidia-smi --power-limit=WATTS, or what sets it at boot), then "
    "test again.",
)
CLOCKS = Act(
    CONFIGURE,
    "Set the clocks back (nvidia-smi --reset-applications-clocks, --reset-gpu-clocks), then test "
    "again.",
)
FREE_GPU = Act(RETEST, "Free the GPU from other programs, then test again.")
HEAT = Act(
    TICKET,
    "Check airflow, dust, heat sink and power supply of this slot; compare with the GPUs beside "
    "it.",
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
    "Find out why the pod does not run (kubectl get pods -o wide, kubectl describe node): no free "
    "GPU, no image, taint, or a node that is down.",
)
EXPECTED = Act(
    CONFIGURE,
    "Correct what is expected: nodes (nodes, --expect-nodes) and GPUs of each (gpusPerNode, "
    "--gpus).",
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
    "All GPUs of the node have it: look for one cause that they share (BIOS and slot settings, "
    "baseboard, driver, power, cooling), and test again before a part is replaced.",
)
SHARED_PORTS = Act(
    TICKET,
    "All network ports of the node have it: look for one cause that they share (driver of the "
    "adapters, subnet manager, switch, power, BIOS) before a cable is replaced.",
)

# By danger: title, act, and what it explains.
BY_DANGER: dict[Danger, dict[str, tuple]] = {
    Danger.WRONG: {
        "wrong-product": ("computes wrong products", REPLACE, SPOILS),
        "wrong-memory": ("its memory changes data", REPLACE, SPOILS),
        "wrong-bits": ("equal work gives other bits", REPLACE, SPOILS),
        "own-gradient": ("computes wrong gradients", REPLACE, SPOILS),  # before any communication
        "wrong-words": ("a copy changes data", NVLINK, SPOILS),  # after a copy
        "wrong-sender": (
            "sends wrong data",
            Act(
                RESEAT,
                "Several GPUs get wrong data from this one: reseat it (SXM board or NVLink "
                "bridge), then RMA.",
            ),
            SPOILS,
        ),
        "wrong-elements": ("a collective gives wrong results", None),
        "shared-gradient": ("gradients differ between ranks", None),
        "diverged": ("ranks diverge", DISAGREE),
        "no-majority": ("devices disagree", DISAGREE),
        "loss": ("training gives a wrong loss", None),
        "volume-bytes": (
            "a volume changes data",
            Act(
                TICKET,
                "The volume returned other bytes than were written: give this text to the owner "
                "of the storage.",
            ),
        ),
    },
    Danger.LOST: {
        "row-remap-failed": ("memory rows cannot be remapped", REPLACE, BREAKS),
        "less-memory": ("has less memory", REPLACE),
        "ecc": ("uncorrectable memory errors", RESET_GPU, BREAKS),
        "reset-needed": ("the driver asks for a reset", RESET_GPU, BREAKS),
        "reboot-needed": ("the driver asks for a reboot", POWER_CYCLE, BREAKS),
        "gpu-lost": ("fell off the bus", POWER_CYCLE, BREAKS),
        "gpus-missing": ("GPUs are missing", POWER_CYCLE, BREAKS),
        "driver-hangs": ("the driver hangs", POWER_CYCLE),
        "fabric-degraded": ("the NVSwitch fabric is degraded", NVSWITCH, SLOWS),
        "fabric-manager": ("the fabric manager does not run", FABRIC_MANAGER, SLOWS),
        "cuda-reset": ("CUDA fails", RESET_GPU, BREAKS),
        "cuda-busy": (
            "the GPU is held by something",
            Act(
                RESET,
                "No listed program holds the GPU: end leftovers (fuser -v /dev/nvidia*), else "
                "reset it.",
            ),
            BREAKS,
        ),
        "xid-reset": ("an Xid that needs a reset", RESET_GPU, BREAKS),
        "xid-reboot": ("an Xid that needs a reboot", POWER_CYCLE, BREAKS),
        "xid-nvlink": ("an Xid of NVLink", NVLINK, BREAKS),
        "xid-nvswitch": ("an Xid of an NVSwitch", NVSWITCH, BREAKS),
        "port-down": ("a network port is down", PORT, SLOWS),
        "port-missing": (
            "a network port is missing",
            Act(
                TICKET,
                "Look for the adapter of this network port on the bus (lspci): reseat it, then "
                "replace it.",
            ),
            SLOWS,
        ),
    },
    Danger.DAMAGED: {
        "port-errors": ("a network port counts errors", PORT),
        "pcie-errors": ("PCIe errors", PCIE, SLOWS),
        "nvlink-errors": ("NVLink errors", NVLINK, SLOWS),
        "nvlink-down": ("NVLink is down or slow", NVLINK, SLOWS),
    },
    Danger.SLOW: {
        "slow": ("slower than its peers", None, SLOWS),
        "limit": ("beyond a limit", None, SLOWS),
        "baseline": ("slower than when it was accepted", None, SLOWS),
        "outlier": ("worse than the fleet", None, SLOWS),
        "stall": (
            "stalls",
            Act(
                TICKET,
                "Read clocks, power and Xids of this GPU over some minutes (nvidia-smi dmon); if "
                "they are right, RMA.",
            ),
            SLOWS,
        ),
        "slow-rank": ("a slow rank", None, SLOWS),
        "late-rank": (
            "a late rank",
            Act(
                TICKET,
                "Check CPU binding and load of the host and the network of this rank, then test "
                "again.",
            ),
            SLOWS,
        ),
        "slowdown": ("heat or power slows it", HEAT, SLOWS),
        "pcie": ("a narrow or slow PCIe link", PCIE, SLOWS),
        "port-slow": ("a slow network port", PORT, SLOWS),
        "bad-node": ("its network is slow or broken", NETWORK),
        "bad-link": ("a slow link between nodes", NETWORK),
        "slow-fabric": (
            "the network between all nodes is slow",
            Act(
                CONFIGURE,
                "See with NCCL_DEBUG=INFO whether RDMA carries it, and set up the fast network; "
                "then look at its switches.",
            ),
        ),
        "far-adapter": (
            "the network adapter is far",
            Act(
                TICKET,
                "Compare the slots of GPUs and network adapters with those of a node that is "
                "right.",
            ),
        ),
    },
    Danger.SETTING: {
        "cuda-memory": ("no free GPU memory", FREE_GPU),
        "power-capped": ("its power is capped", POWER, SLOWS),
        "clocks-set": ("its clocks are set", CLOCKS, SLOWS),
        "other-program": ("another program uses it", FREE_GPU, SLOWS),
        "setting": ("a wrong setting", AS_OTHERS),
        "differ": ("GPUs differ on a node", AS_OTHERS),
        "drift": ("differs from the other nodes", AS_OTHERS),
        "clock": ("the clock is wrong", AS_OTHERS),
        "gpus-divided": (
            "GPUs are divided",
            Act(
                RETEST,
                "Test nodes whose GPUs are not divided, or each instance in a pod of its own.",
            ),
        ),
        "far-cpus": (
            "CPUs are far from the GPUs",
            Act(
                CONFIGURE,
                "Give the pod CPUs of every socket (cpuset, CPU manager, Topology Manager), then "
                "test again.",
            ),
        ),
        "volume-full": (
            "a volume is full",
            Act(CONFIGURE, "Free or enlarge the volume; the hardware is not at fault."),
        ),
        "volume": ("a volume is slow or fails", None),
        "bad-limit": (
            "a limit that cannot be",
            Act(CONFIGURE, "Correct the limit in the values (limits), then test again."),
        ),
        "damaged-report": (
            "a report cannot be read",
            Act(RETEST, "This report cannot be read: look at the file, then test the node again."),
        ),
    },
    Danger.UNKNOWN: {
        "cuda-error": ("CUDA fails", OWNER),
        "xid-program": (
            "an Xid that a program may cause",
            Act(
                RETEST,
                "A program may cause this: see which one ran, then test the idle GPU again.",
            ),
            BREAKS,
        ),
        "not-arrived": (
            "a rank did not arrive",
            Act(
                TICKET,
                "Look at the GPU of the rank that did not arrive: Xids, heat, its process; test "
                "that GPU alone.",
            ),
        ),
        "check-failed": ("a check failed to run", AGAIN),
        "not-run": ("a check did not run", AGAIN),
        "missing": ("evidence is missing", AGAIN),
        "half-tested": ("not tested at full load", FREE_GPU),
        "unlisted": ("the driver does not list it", ACCEPT_UNKNOWN),
        "unknown": ("not known", ACCEPT_UNKNOWN),
        "unreadable": ("cannot be read", READABLE),
        "no-figure": ("no figure to compare with", NO_ACT),
        "port-alike": ("a network port is as on the other nodes", NO_ACT),
        "impossible": ("an impossible number", AGAIN),
        "contradiction": ("the report contradicts itself", AGAIN),
        "copy": ("a copy of another report", AGAIN),
        "stale": ("tested days before the others", AGAIN),
        "foreign": ("not of this fleet", EXPECTED),
        "nodes-expected": ("what is expected is wrong or not set", EXPECTED),
        "no-report": ("no report", START_POD),
        "no-world": (
            "not checked across nodes yet",
            Act(
                WAIT,
                "If it stays, kubectl logs of the container world on these nodes name the reason.",
            ),
        ),
        "testing": (
            "still tests",
            Act(
                WAIT,
                "If it stays, kubectl logs and kubectl describe of this pod name the reason.",
            ),
        ),
        "pod-gone": (
            "its pod is gone",
            Act(START, "Find out what ended the pod (kubectl describe node), then test again."),
        ),
        "image": (
            "the image cannot be pulled",
            Act(
                CONFIGURE,
                "Correct the image, its registry or the pull secret (image, imagePullSecrets).",
            ),
        ),
        "out-of-memory": (
            "the tests ran out of memory",
            Act(CONFIGURE, "Give the tests more memory (resources), then test again."),
        ),
        "pods-not-listed": (
            "pods cannot be listed",
            Act(
                CONFIGURE,
                "Let the page list pods (Role, RoleBinding, egress of networkPolicy), or unset "
                "fleet.listPods.",
            ),
        ),
    },
}
KINDS = {
    name: Kind(danger, *its) for danger, kinds in BY_DANGER.items() for name, its in kinds.items()
}

# Of kinds without an act of their own, by number, then by check.
BY_MEASURE = {"link_h2d": PCIE, "link_d2h": PCIE, "link_peer": NVLINK}
BY_CHECK = {
    "compute": Act(
        TICKET, "Slower than its model: check heat, power and clocks; if all are right, RMA."
    ),
    "host": Act(
        TICKET,
        "Look for other programs on the CPUs; then compare memory modules, clocks and heat with "
        "another node.",
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
SLOWER = ("slow", "limit", "baseline", "outlier", "slow-rank")
# checks whose speed is a matter of clocks
POWERED = ("compute", "memory", "training", "stragglers")
# what is more of a reason than the slowness
WHY_SLOW = ("power-capped", "clocks-set", "other-program", "slowdown")


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
