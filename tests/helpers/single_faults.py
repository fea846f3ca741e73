"""Single faults of a node's parts: what each changes in the hardware, and the one suspect that it
must become.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from gpuworker.judgement.kinds import CONFIGURE, REBOOT, RESEAT, RESET, RETEST, RMA, TICKET
from gpuworker.judgement.report import FAIL, INCOMPLETE, Problem
from gpuworker.runtime.gpu_inventory import Gpu
from tests.helpers.simulated_node import GPUS, Hardware, xids

GPU, PEER = "cuda:{bad}", "cuda:{a}↔cuda:{b}"
ALL, PORT, PORTS, NODE = f"all {GPUS} GPUs", "mlx5_{bad}/1", f"all {GPUS} ports", ""
FELL_OFF = "GPU has fallen off the bus."


Change = Callable[[Hardware, int], None]


class Fault(NamedTuple):
    part: str  # of the one suspect; {bad}: the GPU, {a} and {b}: it and its neighbour in order
    acts: tuple[str, ...]
    change: Change
    pci: bool = True  # whether the GPU's PCI address is known


def _gpu(**fields: object) -> Change:
    """Other facts of the GPU."""
    return lambda node, bad: node.change(bad, **fields)


def _at(**values: object) -> Change:
    """Other values at the GPU's place in lists of the node."""

    def change(node, bad):
        for name, value in values.items():
            getattr(node, name)[bad] = value

    return change


def _only(name: str) -> Change:
    """The GPU alone is in a set of the node."""
    return lambda node, bad: setattr(node, name, {bad})


def _node(**values: object) -> Change:
    return lambda node, bad: vars(node).update(values)


def _port(**fields: object) -> Change:
    def change(node, bad):
        node.ports[bad] = dataclasses.replace(node.ports[bad], **fields)

    return change


def _all(*changes: Change) -> Change:
    return lambda node, bad: [change(node, bad) for change in changes]


def _each(change: Change) -> Change:
    """The change at every GPU, or port."""
    return lambda node, bad: [change(node, index) for index in range(node.count)]


def _of_check(check: str, kind: str, text: str) -> Change:
    def change(node, bad):
        device = f"cuda:{bad}"
        node.failures[check] = [Problem(FAIL, kind, f"{device}: {text}", [device])]

    return change


def _xid(code: int, text: str = "") -> Change:
    def change(node, bad):
        address = node.gpus[bad].bus_id.partition(".")[0]
        node.xids = [{"code": code, "bus_id": address, "text": text, "age_s": 90.0}]

    return change


def _watched(code: int) -> Change:
    return lambda node, bad: node.added.append(xids((node.gpus[bad].uuid, code)))


slow, port_down = _at(compute=0.6), _port(up=False)
capped = _all(slow, _gpu(power_limit_w=350.0))
fewer_nvlinks = _gpu(nvlinks_up=5, nvlinks_down=13)
NARROW = {"pcie_width_under_load": 8}
SLOWDOWN = {"readings": 40, "hardware thermal slowdown": 30}
FULL = "full while the shard was written (No space left on device; 3 MB free)"
WRONG = "of 4 bytes, round 0: 1 of 9 elements are wrong"


def bad_nvlink(node, bad):
    for pair in node.links:
        node.links[pair] = 0.3 if bad in pair else 1.0
    fewer_nvlinks(node, bad)


def bad_nvlinks(node, bad):
    node.links = dict.fromkeys(node.links, 0.3)
    _each(fewer_nvlinks)(node, bad)


def bad_link(node, bad):
    other = (bad + 1) % node.count
    node.links[bad, other] = node.links[other, bad] = 0.3


def corrupt_links(node, bad):
    """What this GPU sends arrives wrong, and every sum of all ranks is wrong on all of them."""
    pairs = [f"cuda:{bad}→cuda:{other}" for other in range(node.count) if other != bad]
    node.failures["links"] = [
        Problem(FAIL, "wrong-words", f"{p} delivered 3 wrong words of 99", [p]) for p in pairs
    ]
    wrong_fabric(node, bad)


def wrong_sender(node, bad):
    node.wrong = {i: ([f"all_gather {WRONG}"], [bad]) for i in range(node.count) if i != bad}


def wrong_fabric(node, bad):
    node.wrong = {index: ([f"all_reduce {WRONG}"], []) for index in range(node.count)}


def unseen(node, bad):
    """The driver has another order than torch, which names the GPUs that it sees without a gap."""
    node.seen -= 1
    del node.gpus[bad]
    for index, gpu in enumerate(node.gpus):
        node.gpus[index] = dataclasses.replace(gpu, device=f"cuda:{index}")


def lost_listed(node, bad):
    gone = dataclasses.replace(node.gpus[bad], device=f"GPU {bad} of the driver")
    unseen(node, bad)
    node.gpus.insert(bad, gone)


def lost_to_the_driver(node, bad):
    unseen(node, bad)
    node.gpus.insert(bad, Gpu(f"GPU {bad} of the driver", lost="GPU is lost"))


def lost_without_a_trace(node, bad):
    unseen(node, bad)
    del node.pci_gpus[bad]


def lost_meanwhile(node, bad):
    """After the first checks: what follows cannot use CUDA."""
    _watched(79)(node, bad)
    words = "AcceleratorError: CUDA error: unspecified launch failure"
    error = Problem(FAIL, "cuda-reset", f"cuda:{bad}: {words}", [f"cuda:{bad}"])
    node.broken = dict.fromkeys(("links", "memory", "repeatability"), error)
    error = Problem(FAIL, "cuda-reset", f"BrokenWorldError: rank {bad}: {words}", [f"rank {bad}"])
    node.broken |= dict.fromkeys(
        ("training", "collectives", "correctness", "stragglers", "storage"), error
    )


def hanging(node, bad):
    where = f"rank {bad} did not arrive at training step 3, where 7 of 8 ranks wait"
    words = f"BrokenWorldError: no result after 60 s; {where}"
    error = Problem(INCOMPLETE, "not-arrived", words, [f"rank {bad}"])
    node.broken = dict.fromkeys(("training", "collectives"), error)


OUT_OF_MEMORY = Problem(INCOMPLETE, "cuda-memory", "OutOfMemoryError: CUDA out of memory")
FAULTS = {
    "slow GPU": Fault(GPU, (TICKET,), slow),
    "a bit slow GPU": Fault(GPU, (TICKET, RETEST), _at(compute=0.88)),
    "capped power": Fault(GPU, (CONFIGURE,), capped),
    "capped power of all": Fault(ALL, (CONFIGURE,), _each(capped)),
    "hot GPU": Fault(GPU, (TICKET,), _all(slow, _at(telemetry=SLOWDOWN))),
    "stalling GPU": Fault(GPU, (TICKET,), _at(kept=0.6)),
    "slow memory": Fault(GPU, (RETEST,), _at(memory=0.3)),
    "application clocks": Fault(GPU, (CONFIGURE,), _gpu(clock_reasons=2)),
    "slowdown at rest": Fault(GPU, (TICKET,), _gpu(clock_reasons=0x40)),
    "NVLinks of a GPU": Fault(GPU, (RESEAT,), bad_nvlink),
    "NVLinks of all": Fault(ALL, (TICKET,), bad_nvlinks),
    "one NVLink": Fault(PEER, (RESEAT,), bad_link),
    "narrow PCIe": Fault(GPU, (RESEAT,), _all(_at(host_link=0.5, under_load=NARROW), _gpu(pcie_width=8))),
    "slow slot": Fault(GPU, (RESEAT, RETEST), _all(_at(host_link=0.5), _gpu(pcie_gen_max=4))),
    "wrong words": Fault(GPU, (RESEAT,), corrupt_links),
    "wrong sender": Fault(GPU, (RESEAT,), wrong_sender),
    "wrong fabric": Fault("GPU fabric", (TICKET,), wrong_fabric, pci=False),
    "ECC off": Fault(GPU, (CONFIGURE,), _gpu(ecc=False)),
    "another VBIOS": Fault(GPU, (CONFIGURE,), _gpu(vbios="95.00")),
    "another driver setting": Fault(GPU, (CONFIGURE,), _gpu(persistence=True)),
    "memory errors": Fault(GPU, (RESET,), _gpu(ecc_uncorrected=3)),
    "row not remapped": Fault(GPU, (RMA,), _gpu(remap_failed=True)),
    "pages pending": Fault(GPU, (RESET,), _gpu(pages_pending=True)),
    "demand of the driver": Fault(GPU, (REBOOT,), _gpu(recovery_action=2)),
    "degraded fabric": Fault(GPU, (TICKET,), _gpu(fabric_state=3, fabric_status=0, fabric_health=1)),
    "another program": Fault(GPU, (RETEST,), _gpu(programs=("trainer (process 4711)",))),
    "unknown sensors": Fault(GPU, (CONFIGURE,), _gpu(temperature_c=None)),
    "prohibited": Fault(GPU, (CONFIGURE,), _gpu(compute_mode=2)),
    "wrong products": Fault(GPU, (RMA,), _of_check("compute", "wrong-product", "gemm_bf16: 2 products are wrong")),
    "flipped bit": Fault(GPU, (RMA,), _of_check("memory", "wrong-memory", "memory at byte 0x10 holds 1 (bit 17)")),
    "other bits": Fault(GPU, (RMA,), _only("odd_bits")),
    "wrong gradient": Fault(GPU, (RMA,), _at(own_error=0.5)),
    "diverged": Fault(GPU, (RETEST,), _only("diverged")),
    "late rank": Fault(GPU, (TICKET,), _at(late_s=0.1)),
    "Xid 48": Fault(GPU, (RESET,), _xid(48)),
    "Xid 74": Fault(GPU, (RESEAT,), _watched(74)),
    "far adapter": Fault(GPU, (TICKET,), _only("far")),
    "port down": Fault(PORT, (TICKET,), port_down, pci=False),
    "port slow": Fault(PORT, (TICKET,), _port(rate_gbps=100.0), pci=False),
    "ports down": Fault(PORTS, (TICKET,), _each(port_down), pci=False),
    "ports missing": Fault(PORTS, (TICKET,), _node(ports=[]), pci=False),
    "slow CPUs": Fault(NODE, (TICKET, RETEST), _node(cpus=0.2), pci=False),
    "slow training": Fault(ALL, (TICKET,), _node(training=0.6), pci=False),
    "slow exchange": Fault(NODE, (TICKET,), _node(exchange=0.05), pci=False),
    "full volume": Fault("out", (CONFIGURE,), _node(volume=FULL), pci=False),
    "lost, the driver lists it": Fault("GPU {bad} of the driver", (REBOOT,), lost_listed),
    "lost to the driver": Fault("GPU {bad} of the driver", (REBOOT,), lost_to_the_driver, pci=False),
    "lost, on the bus": Fault("GPU 0000:{bad}b:00.0", (REBOOT,), unseen),
    "lost, with an Xid": Fault("GPU 0000:{bad}b:00", (REBOOT,), _all(_xid(79, FELL_OFF), lost_without_a_trace)),
    "lost without a trace": Fault(NODE, (REBOOT,), lost_without_a_trace, pci=False),
    "lost meanwhile": Fault(GPU, (REBOOT,), lost_meanwhile),
    "hanging GPU": Fault(GPU, (TICKET,), hanging),
    "broken check": Fault(NODE, (TICKET, RETEST), _node(broken={"memory": OUT_OF_MEMORY}), pci=False),
}  # fmt: skip
