"""A single fault of a node is a single suspect, whatever follows from it in the numbers of other
parts.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable

import pytest

from gpuworker.accept import fabric
from gpuworker.judgement.findings import Finding
from gpuworker.judgement.fleet_report import Fleet
from gpuworker.judgement.kinds import REBOOT
from gpuworker.judgement.report import FAIL, PASS, Problem
from gpuworker.judgement.sources import Expected
from gpuworker.judgement.suspects import suspects
from gpuworker.runtime.gpu_inventory import Gpu
from tests.helpers.fleet_reports import merged
from tests.helpers.simulated_node import GPUS, REQUESTED, Hardware
from tests.helpers.single_faults import FAULTS, GPU, PORT, Fault, port_down

NODES = 6


@functools.cache
def healthy(index: int) -> dict:
    return Hardware(f"n{index}", index).report()


def fleet_of(*bad: dict) -> Fleet:
    reports = [*bad, *map(healthy, range(len(bad), NODES))]
    return merged(*reports, expected=Expected(NODES, requested=REQUESTED))


def node_with(fault: Fault, seed: int) -> tuple[dict, int]:
    """The report of node n0 with this fault of a random GPU."""
    hardware, bad = Hardware("n0", seed), random.Random(seed).randrange(GPUS)
    fault.change(hardware, bad)
    return hardware.report(), bad


def test_the_simulated_node_is_healthy_without_a_fault() -> None:
    assert fleet_of().findings == []


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", FAULTS)
def test_a_single_fault_is_one_suspect(name: str, seed: int) -> None:
    fault = FAULTS[name]
    report, bad = node_with(fault, seed)
    fleet = fleet_of(report)
    a, b = sorted((bad, (bad + 1) % GPUS))
    part = fault.part.format(bad=bad, a=a, b=b)
    found = [(suspect.node, suspect.device, suspect.act) for suspect in fleet.suspects]
    assert found in [[("n0", part, act)] for act in fault.acts], [
        f"{s.part}: {s.why}" for s in fleet.suspects
    ]
    (suspect,) = fleet.suspects
    assert not fault.pci or f"0000:{bad}b:00" in suspect.pci or part.startswith("all")
    assert suspect.verdict == fleet.verdict == fleet.nodes[0].verdict != PASS
    listed = " ".join(suspect.reasons)
    assert all(finding.reason in listed for finding in fleet.findings), "no finding is lost"


@pytest.mark.parametrize("seed", range(20))
def test_two_faults_of_two_parts_are_two_suspects(seed: int) -> None:
    choice = random.Random(seed)
    own = [name for name, fault in FAULTS.items() if fault.part in (GPU, PORT)]
    # Each of these has one list in the simulated node.
    names = choice.sample(
        [name for name in own if not name.startswith(("Xid", "wrong", "far", "other bits"))], 2
    )
    hardware, bad = Hardware("n0", seed), choice.sample(range(GPUS), 2)
    for name, index in zip(names, bad, strict=True):
        FAULTS[name].change(hardware, index)
    wanted = [FAULTS[name].part.format(bad=index) for name, index in zip(names, bad, strict=True)]
    fleet = fleet_of(hardware.report())
    assert sorted(suspect.device for suspect in fleet.suspects) == sorted(wanted), names


def slow_training_of(*devices: int, **changes: object) -> Fleet:
    """Of node n0, whose other numbers are right, at 60 % of the speed of the fleet; some GPUs have
    another share.
    """
    hardware = Hardware("n0", 1)
    hardware.training = 0.6
    for change in changes.pop("also", ()):
        change(hardware)
    report = hardware.report()
    shares = changes.pop("shares", {})
    for check in report["checks"]:
        for number in check["measurements"] if check["name"] == "training" else ():
            if number["device"]:
                index = int(number["device"].removeprefix("cuda:"))
                number["value"] *= shares.get(index, 1.0) if index in devices else 1 / 0.6
    return fleet_of(report)


def parts(fleet: Fleet) -> list[str]:
    return sorted(suspect.device for suspect in fleet.suspects)


def test_gpus_that_train_slowly_without_a_cause_are_one_suspect_beside_an_unrelated_fault() -> None:
    fleet = slow_training_of(*range(GPUS), also=[lambda node: node.change(3, ecc=False)])
    assert parts(fleet) == ["all 8 GPUs", "cuda:3"]
    assert not any(
        "training" in reason for suspect in fleet.suspects[1:] for reason in suspect.reasons
    )


def test_a_gpu_that_trains_clearly_slower_than_all_others_is_the_suspect() -> None:
    fleet = slow_training_of(*range(GPUS), shares={5: 0.5})
    assert parts(fleet) == ["cuda:5"]
    others = [
        reason for reason in fleet.suspects[0].reasons if reason.startswith("consequence, all GPUs")
    ]
    assert others and "cuda:0, cuda:1" in others[0] and "cuda:5" not in others[0]
    assert "consequence" not in fleet.suspects[0].why


def test_gpus_that_do_not_wait_for_each_other_are_suspects_of_their_own() -> None:
    assert parts(slow_training_of(2, 6, shares={2: 0.9, 6: 0.7})) == ["cuda:2", "cuda:6"]


def test_what_is_wrong_and_not_slow_explains_no_slow_training() -> None:
    wrong = Problem(
        FAIL, "wrong-memory", "cuda:3: memory at byte 0x10 holds 1 (bit 17)", ["cuda:3"]
    )
    odd = [lambda node: node.failures.update({"memory": [wrong]})]
    assert parts(slow_training_of(*range(GPUS), also=odd)) == ["all 8 GPUs", "cuda:3"]


@pytest.mark.parametrize(
    ("down", "wanted"),
    [(range(1, GPUS), 7), (range(GPUS), 1), ([4], 1)],
)
def test_ports_are_one_suspect_only_if_none_of_them_is_well(
    down: Iterable[int], wanted: int
) -> None:
    hardware = Hardware("n0", 1)
    for index in down:
        port_down(hardware, index)
    hardware.ports.append(
        fabric.Port("mlx5_9/1", True, rate_gbps=25.0, link_layer="Ethernet", kind="MT4125")
    )
    assert len(fleet_of(hardware.report()).suspects) == wanted


def test_a_bad_port_explains_a_node_that_is_slow_to_others() -> None:
    port = Finding(
        FAIL, "port-down", "this network port is down", "n0", "mlx5_0/1", found_by="fleet"
    )
    slow = Finding(
        FAIL, "bad-node", "node 0 (n0) is bad", "n0", check="bad_nodes", found_by="world"
    )
    assert [suspect.device for suspect in suspects([slow, port], [], {})] == ["mlx5_0/1"]
    assert [suspect.device for suspect in suspects([slow], [], {})] == [""]


def test_half_of_a_nodes_gpus_with_another_setting_are_named_by_their_own_findings() -> None:
    hardware = Hardware("n0", 1)
    for index in range(4):
        hardware.change(index, ecc=False)
    assert parts(fleet_of(hardware.report())) == [f"cuda:{index}" for index in range(4)]


def test_numbers_that_a_lost_gpu_lacks_are_no_other_suspect() -> None:
    """Also if the report claims that all checks ran."""
    report = Hardware("n0", 1).report()
    report["facts"]["gpu_models"].pop()
    for check in report["checks"]:
        check["measurements"] = [m for m in check["measurements"] if "cuda:4" not in m["device"]]
    fleet = fleet_of(report)
    assert [(suspect.device, suspect.act) for suspect in fleet.suspects] == [("", REBOOT)]
    assert len(fleet.findings) > 10


def test_two_lost_gpus_are_two_suspects() -> None:
    hardware = Hardware("n0", 1)
    for index in (2, 5):
        hardware.gpus[index] = Gpu(f"GPU {index} of the driver", lost="GPU is lost")
    hardware.seen = GPUS - 2
    assert parts(fleet_of(hardware.report())) == ["GPU 2 of the driver", "GPU 5 of the driver"]
