"""Single faults of a node's parts: what each changes in the hardware, and the one suspect that it
must become.
"""

from __future__ import annotations

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


class Fault(NamedTuple):
    part: str  # of the one suspect; {bad}: the GPU, {a} and {b}: it and its neighbour in order
    acts: tuple[str, ...]
    change: Callable[[Hardware, int], None]
    pci: bool = True  # whether the GPU's PCI address is known


def _gpu(**fields: object) -> Callable[[Hardware, int], None]:
    return lambda node, bad: node.change(bad, **fields)


def _of_check(check: str, kind: str, text: str) -> Callable[[Hardware, int], None]:
    def change(node: Hardware, bad: int) -> None:
        device = f"cuda:{bad}"
        node.failures[check] = [Problem(FAIL, kind, f"{device}: {text}", [device])]

    return change


def _xid(code: int, text: str = "") -> Callable[[Hardware, int], None]:
    def change(node: Hardware, bad: int) -> None:
        address = node.gpus[bad].bus_id.partition(".")[0]
        node.xids = [{"code": code, "bus_id": address, "text": text, "age_s": 90.0}]

    return change


def _watched(code: int) -> Callable[[Hardware, int], None]:
    return lambda node, bad: node.added.append(xids((node.gpus[bad].uuid, code)))


def slow(node: Hardware, bad: int) -> None:
    node.compute[bad] = 0.6


def slower(node: Hardware, bad: int) -> None:
    """Enough for a WARN of the check, and too little for one of the training."""
    node.compute[bad] = 0.88


def capped(node: Hardware, bad: int) -> None:
    slow(node, bad)
    node.change(bad, power_limit_w=350.0)


def all_capped(node: Hardware, bad: int) -> None:
    for index in range(node.count):
        capped(node, index)


def hot(node: Hardware, bad: int) -> None:
    slow(node, bad)
    node.telemetry[bad] = {"readings": 40, "hardware thermal slowdown": 30}


def stalling(node: Hardware, bad: int) -> None:
    node.kept[bad] = 0.6


def slow_memory(node: Hardware, bad: int) -> None:
    node.memory[bad] = 0.3


def bad_nvlink(node: Hardware, bad: int) -> None:
    for pair in node.links:
        node.links[pair] = 0.3 if bad in pair else 1.0
    node.change(bad, nvlinks_up=5, nvlinks_down=13)


def bad_nvlinks(node: Hardware, bad: int) -> None:
    node.links = dict.fromkeys(node.links, 0.3)
    for index in range(node.count):
        node.change(index, nvlinks_up=5, nvlinks_down=13)


def bad_link(node: Hardware, bad: int) -> None:
    other = (bad + 1) % node.count
    node.links[bad, other] = node.links[other, bad] = 0.3


def narrow(node: Hardware, bad: int) -> None:
    node.host_link[bad] = 0.5
    node.change(bad, pcie_width=8)
    node.under_load[bad] = {"pcie_width_under_load": 8}


def slow_slot(node: Hardware, bad: int) -> None:
    node.host_link[bad] = 0.5
    node.change(bad, pcie_gen_max=4)


def corrupt_links(node: Hardware, bad: int) -> None:
    """What this GPU sends arrives wrong, and every sum of all ranks is wrong on all of them."""
    others = [index for index in range(node.count) if index != bad]
    pairs = [f"cuda:{bad}→cuda:{other}" for other in others]
    node.failures["links"] = [
        Problem(FAIL, "wrong-words", f"{p} delivered 3 wrong words of 99", [p]) for p in pairs
    ]
    node.wrong = {
        index: (["all_reduce of 4 bytes, round 0: 1 of 9 elements are wrong"], [])
        for index in range(node.count)
    }


def wrong_sender(node: Hardware, bad: int) -> None:
    words = "all_gather of 4 bytes, round 0: 1 of 9 elements are wrong"
    node.wrong = {index: ([words], [bad]) for index in range(node.count) if index != bad}


def wrong_fabric(node: Hardware, bad: int) -> None:
    words = "all_reduce of 4 bytes, round 0: 1 of 9 elements are wrong"
    node.wrong = {index: ([words], []) for index in range(node.count)}


def wrong_gradient(node: Hardware, bad: int) -> None:
    node.own_error[bad] = 0.5


def diverged(node: Hardware, bad: int) -> None:
    node.diverged = {bad}


def odd_bits(node: Hardware, bad: int) -> None:
    node.odd_bits = {bad}


def late(node: Hardware, bad: int) -> None:
    node.late_s[bad] = 0.1


def slow_cpus(node: Hardware, bad: int) -> None:
    node.cpus = 0.2


def slow_training(node: Hardware, bad: int) -> None:
    node.training = 0.6


def slow_exchange(node: Hardware, bad: int) -> None:
    node.exchange = 0.05


def full_volume(node: Hardware, bad: int) -> None:
    node.volume = "full while the shard was written (No space left on device; 3 MB free)"


def port_down(node: Hardware, bad: int) -> None:
    node.ports[bad] = dataclasses.replace(node.ports[bad], up=False)


def port_slow(node: Hardware, bad: int) -> None:
    node.ports[bad] = dataclasses.replace(node.ports[bad], rate_gbps=100.0)


def ports_down(node: Hardware, bad: int) -> None:
    node.ports = [dataclasses.replace(port, up=False) for port in node.ports]


def ports_missing(node: Hardware, bad: int) -> None:
    node.ports = []


def far(node: Hardware, bad: int) -> None:
    node.far = {bad}


def _unseen(node: Hardware, bad: int) -> None:
    """The driver has another order than torch, which names the GPUs that it sees without a gap."""
    node.seen -= 1
    del node.gpus[bad]
    for index, gpu in enumerate(node.gpus):
        node.gpus[index] = dataclasses.replace(gpu, device=f"cuda:{index}")


def lost_listed(node: Hardware, bad: int) -> None:
    gone = dataclasses.replace(node.gpus[bad], device=f"GPU {bad} of the driver")
    _unseen(node, bad)
    node.gpus.insert(bad, gone)


def lost_to_the_driver(node: Hardware, bad: int) -> None:
    _unseen(node, bad)
    node.gpus.insert(bad, Gpu(f"GPU {bad} of the driver", lost="GPU is lost"))


def lost_on_the_bus(node: Hardware, bad: int) -> None:
    _unseen(node, bad)


def lost_with_an_xid(node: Hardware, bad: int) -> None:
    _xid(79, FELL_OFF)(node, bad)
    _unseen(node, bad)
    del node.pci_gpus[bad]


def lost_without_a_trace(node: Hardware, bad: int) -> None:
    _unseen(node, bad)
    del node.pci_gpus[bad]


def lost_meanwhile(node: Hardware, bad: int) -> None:
    """After the first checks: what follows cannot use CUDA."""
    _watched(79)(node, bad)
    words = "AcceleratorError: CUDA error: unspecified launch failure"
    error = Problem(FAIL, "cuda-reset", f"cuda:{bad}: {words}", [f"cuda:{bad}"])
    node.broken = dict.fromkeys(("links", "memory", "repeatability"), error)
    error = Problem(FAIL, "cuda-reset", f"BrokenWorldError: rank {bad}: {words}", [f"rank {bad}"])
    node.broken |= dict.fromkeys(
        ("training", "collectives", "correctness", "stragglers", "storage"), error
    )


def hanging(node: Hardware, bad: int) -> None:
    where = f"rank {bad} did not arrive at training step 3, where 7 of 8 ranks wait"
    words = f"BrokenWorldError: no result after 60 s; {where}"
    error = Problem(INCOMPLETE, "not-arrived", words, [f"rank {bad}"])
    node.broken = dict.fromkeys(("training", "collectives"), error)


def broken_check(node: Hardware, bad: int) -> None:
    words = "OutOfMemoryError: CUDA out of memory"
    node.broken = {"memory": Problem(INCOMPLETE, "cuda-memory", words)}


FAULTS = {
    "slow GPU": Fault(GPU, (TICKET,), slow),
    "a bit slow GPU": Fault(GPU, (TICKET, RETEST), slower),
    "capped power": Fault(GPU, (CONFIGURE,), capped),
    "capped power of all": Fault(ALL, (CONFIGURE,), all_capped),
    "hot GPU": Fault(GPU, (TICKET,), hot),
    "stalling GPU": Fault(GPU, (TICKET,), stalling),
    "slow memory": Fault(GPU, (RETEST,), slow_memory),
    "application clocks": Fault(GPU, (CONFIGURE,), _gpu(clock_reasons=2)),
    "slowdown at rest": Fault(GPU, (TICKET,), _gpu(clock_reasons=0x40)),
    "NVLinks of a GPU": Fault(GPU, (RESEAT,), bad_nvlink),
    "NVLinks of all": Fault(ALL, (TICKET,), bad_nvlinks),
    "one NVLink": Fault(PEER, (RESEAT,), bad_link),
    "narrow PCIe": Fault(GPU, (RESEAT,), narrow),
    "slow slot": Fault(GPU, (RESEAT, RETEST), slow_slot),
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
    "other bits": Fault(GPU, (RMA,), odd_bits),
    "wrong gradient": Fault(GPU, (RMA,), wrong_gradient),
    "diverged": Fault(GPU, (RETEST,), diverged),
    "late rank": Fault(GPU, (TICKET,), late),
    "Xid 48": Fault(GPU, (RESET,), _xid(48)),
    "Xid 74": Fault(GPU, (RESEAT,), _watched(74)),
    "far adapter": Fault(GPU, (TICKET,), far),
    "port down": Fault(PORT, (TICKET,), port_down, pci=False),
    "port slow": Fault(PORT, (TICKET,), port_slow, pci=False),
    "ports down": Fault(PORTS, (TICKET,), ports_down, pci=False),
    "ports missing": Fault(PORTS, (TICKET,), ports_missing, pci=False),
    "slow CPUs": Fault(NODE, (TICKET, RETEST), slow_cpus, pci=False),
    "slow training": Fault(ALL, (TICKET,), slow_training, pci=False),
    "slow exchange": Fault(NODE, (TICKET,), slow_exchange, pci=False),
    "full volume": Fault("out", (CONFIGURE,), full_volume, pci=False),
    "lost, the driver lists it": Fault("GPU {bad} of the driver", (REBOOT,), lost_listed),
    "lost to the driver": Fault("GPU {bad} of the driver", (REBOOT,), lost_to_the_driver, pci=False),
    "lost, on the bus": Fault("GPU 0000:{bad}b:00.0", (REBOOT,), lost_on_the_bus),
    "lost, with an Xid": Fault("GPU 0000:{bad}b:00", (REBOOT,), lost_with_an_xid),
    "lost without a trace": Fault(NODE, (REBOOT,), lost_without_a_trace, pci=False),
    "lost meanwhile": Fault(GPU, (REBOOT,), lost_meanwhile),
    "hanging GPU": Fault(GPU, (TICKET,), hanging),
    "broken check": Fault(NODE, (TICKET, RETEST), broken_check, pci=False),
}  # fmt: skip
