"""Fleets of simulated nodes with faults, for pictures and tests of the page.

python -m tests.helpers.example_fleets FILE       240 nodes with 8 GPUs and 15 kinds of fault

docs/fleet-page.png is a screenshot of that page by Chromium (--headless --hide-scrollbars
--no-sandbox --window-size=1280,800 --screenshot=docs/fleet-page.png FILE). docs/fleet-cause.png is
its seventh cause, opened, in a window of 900 pixels.
"""

import functools
import random
import sys
from pathlib import Path

from gpuworker.fleet.formats.page import page
from gpuworker.judgement.fleet_report import Fleet
from gpuworker.judgement.sources import Expected
from tests.helpers.fleet_reports import merged, problem, world_check, world_report
from tests.helpers.simulated_node import GPUS, REQUESTED, Hardware
from tests.helpers.single_faults import FAULTS

NOTE = "made-up numbers"
PENDING = "is Pending: Unschedulable: 0/241 nodes are available: 1 Insufficient nvidia.com/gpu"
TESTING = "runs for 4 min and has no report yet"
# node -> fault of single_faults.py
FIFTEEN = {
    "gpu-r01-07": "memory errors", "gpu-r02-01": "narrow PCIe", "gpu-r04-03": "hot GPU",
    "gpu-r05-09": "NVLinks of a GPU", "gpu-r06-16": "lost, with an Xid", "gpu-r07-11": "port down",
    "gpu-r08-12": "slow memory", "gpu-r09-05": "wrong products", "gpu-r10-10": "wrong gradient",
    "gpu-r11-14": "capped power", "gpu-r12-02": "row not remapped", "gpu-r14-06": "late rank",
    "gpu-r15-08": "application clocks",
}  # fmt: skip
WARM_RACK, OTHER_DRIVER = "gpu-r13", [f"gpu-r03-0{number}" for number in range(2, 6)]
FEW = {
    "node-01": "wrong products", "node-05": "one NVLink", "node-07": "slow GPU",
    "node-09": "memory errors", "node-11": "slowdown at rest",
}  # fmt: skip


def report(name: str, fault: str = "", driver: str = "", share: float = 1.0) -> dict:
    seed = sum(map(ord, name))
    hardware = Hardware(name, seed)
    hardware.compute = [share * each for each in hardware.compute]
    if fault:
        FAULTS[fault].change(hardware, random.Random(seed).randrange(GPUS))
    found = hardware.report() | {"pod": f"accept-{name}", "run_id": "1"}
    found["facts"] |= {"driver": driver or "570.86"}
    return found


@functools.cache
def large(racks: int = 15, nodes: int = 16) -> Fleet:
    """One node is pending, two still test, one rack is warm, four nodes have another driver."""
    names = [
        f"gpu-r{rack:02}-{node:02}" for rack in range(1, racks + 1) for node in range(1, nodes + 1)
    ]
    unreported = {
        "accept-x7k2p": ("gpu-r06-02", "no-report", PENDING),
        "accept-9cxlw": ("gpu-r12-04", "testing", TESTING),
        "accept-lq4tn": ("gpu-r14-09", "testing", TESTING),
    }
    waiting = {node for node, *_ in unreported.values()}
    reports = [
        report(
            name, FIFTEEN.get(name, ""), "575.51" * (name in OTHER_DRIVER),
            0.92 if name.startswith(WARM_RACK) else 1.0,
        )
        for name in names
        if name not in waiting
    ]  # fmt: skip
    found = merged(
        *reports, expected=Expected(names=names, unreported=unreported, requested=REQUESTED)
    )
    found.notes.insert(0, NOTE)
    found.name = "gpu-system/accept"
    return found


@functools.cache
def small() -> Fleet:
    """16 nodes with five faults, one pending node, and the checks across nodes."""
    names = [f"node-{number:02}" for number in range(17)]
    unreported = {"accept-x7k2p": ("node-16", "no-report", PENDING)}
    ranks = {
        name: [*range(index * GPUS, (index + 1) * GPUS)] for index, name in enumerate(names[:-1])
    }
    slow = problem(
        "FAIL",
        "slow-rank",
        "rank 57 (node node-07, cuda:1) is slow: 16.3 ms, the others 14 ms",
        "rank 57",
    )
    world = world_report(ranks, world_check("stragglers", slow, ranks=16 * GPUS))
    expected = Expected(names=names, unreported=unreported, requested=REQUESTED)
    found = merged(
        *(report(name, FEW.get(name, "")) for name in names[:-1]), world, expected=expected
    )
    found.name = "gpu-system/accept"
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(large()))
