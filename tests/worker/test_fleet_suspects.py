"""Suspects: one entry per part, with its identity, the worst first, and one act for every kind of finding."""

from __future__ import annotations

import re

import pytest

from gpuworker.accept import fault_injection, registry
from gpuworker.accept.report import FAIL, INCOMPLETE, WARN
from gpuworker.fleet import acts
from gpuworker.fleet.acts import CONFIGURE, REBOOT, RESEAT, RESET, RETEST, RMA, START, TICKET, act_for
from gpuworker.fleet.expected import Expected
from gpuworker.fleet.fleet_report import FOUND_BY, Fleet
from tests.helpers.fleet_reports import check, measurement, merged, node_report

GPUS = 8
BAD = 4


def gpus_of(node: str) -> list[dict]:
    return [
        {"device": f"cuda:{i}", "uuid": f"GPU-{node}-{i}", "serial": f"165{i}-{node}", "bus_id": f"0000:{i}b:00.0"}
        for i in range(GPUS)
    ]


def with_problems(node: str, name: str, *problems: tuple[str, str], **parts: object) -> dict:
    """A node with one check that has these problems: (verdict, reason)."""
    report = node_report(node, (100.0,) * GPUS)
    report["checks"][0]["facts"]["gpus"] = gpus_of(node)
    worst = next((verdict for verdict in (FAIL, INCOMPLETE, WARN) if verdict in dict(problems)), "PASS")
    problems = [{"verdict": verdict, "reason": reason} for verdict, reason in problems]
    report["checks"].append(check(name, worst, "see problems" if problems else "", problems=problems, **parts))
    report["coverage"] |= {"checks_expected": 4, "checks_reported": 4}
    return report | {"verdict": worst, "reason": f"{name}: see problems" if problems else ""}


def bad_nvlink() -> dict:
    pairs = [(a, b) for a in range(GPUS) for b in range(GPUS) if a != b and BAD in (a, b)]
    names = [f"cuda:{a}→cuda:{b}" for a, b in pairs]
    problems = [(FAIL, f"{name}: link_peer 40 GB/s is below the limit of 300 (NVLink)") for name in names]
    numbers = [measurement(40.0, name, "link_peer", "GB/s") for name in names]
    return with_problems("n2", "links", *problems, (FAIL, f"cuda:{BAD}: 17 of 18 NVLinks are up"), measurements=numbers)


def parts(fleet: Fleet) -> list[tuple[str, str, str]]:
    return [(suspect.node, suspect.device, suspect.act) for suspect in fleet.suspects]


def test_a_gpu_with_a_bad_nvlink_is_one_suspect_with_its_identity() -> None:
    fleet = merged(node_report("n1", (100.0,) * GPUS), bad_nvlink())
    assert len(fleet.findings) > 14
    assert parts(fleet) == [("n2", f"cuda:{BAD}", RESEAT)]
    (suspect,) = fleet.suspects
    identity = (suspect.uuid, suspect.serial, suspect.pci, suspect.pod)
    assert identity == (f"GPU-n2-{BAD}", f"165{BAD}-n2", f"0000:{BAD}b:00.0", "accept-n2")
    for text in (*identity, "n2", "40 GB/s", RESEAT):
        assert text in suspect.ticket
    assert fleet.headline.startswith("1 suspect on 1 node") and "\n" not in fleet.headline


def test_a_single_bad_link_is_a_suspect_of_its_own() -> None:
    pairs = ("cuda:2→cuda:6", "cuda:6→cuda:2")
    numbers = [measurement(40.0, pair, "link_peer", "GB/s") for pair in pairs]
    problems = [(FAIL, f"{pair}: link_peer 40 GB/s is below the limit") for pair in pairs]
    fleet = merged(with_problems("n1", "links", *problems, measurements=numbers), node_report("n2", (100.0,) * GPUS))
    assert parts(fleet) == [("n1", "cuda:2↔cuda:6", RESEAT)]
    assert (fleet.suspects[0].uuid, fleet.suspects[0].serial) == ("GPU-n1-2, GPU-n1-6", "1652-n1, 1656-n1")


def test_a_network_port_is_a_suspect_of_its_own() -> None:
    report = with_problems("n1", "environment", (FAIL, "mlx5_3/1: this network port is down, 3 like it are up"))
    fleet = merged(report, node_report("n2", (100.0,) * GPUS))
    assert parts(fleet) == [("n1", "mlx5_3/1", TICKET)]


def test_several_kinds_of_findings_about_one_gpu_are_one_suspect() -> None:
    """Of its node, of a comparison beside it, and of the fleet."""
    report = with_problems(
        "n1", "compute-too", (FAIL, "cuda:1: 3 uncorrectable memory errors since the driver started"),
        (WARN, "cuda:1 is slow: gemm_bf16 80 TFLOP/s is 80% of the median of its peers"),
    )  # fmt: skip
    report["checks"][1]["measurements"][1]["value"] = 80.0
    fleet = merged(report, *(node_report(f"n{index}", (100.0,) * GPUS) for index in range(2, 5)))
    assert parts(fleet) == [("n1", "cuda:1", RESET)]
    assert len(fleet.suspects[0].reasons) == 3


WRONG_ELEMENT = "all_reduce of 4 bytes, round 0: 1 of 9 elements are wrong"


def test_wrong_collectives_on_most_gpus_accuse_the_fabric_and_not_every_receiver() -> None:
    texts = [f"rank {i} (node n1, cuda:{i}): {WRONG_ELEMENT}" for i in range(8)]
    fleet = merged(with_problems("n1", "collectives", *((FAIL, text) for text in texts)))
    assert parts(fleet) == [("n1", "GPU fabric", TICKET)]
    fleet = merged(with_problems("n1", "collectives", (FAIL, texts[3])))
    assert parts(fleet) == [("n1", "cuda:3", TICKET)]


def test_the_sender_of_wrong_data_is_the_suspect() -> None:
    text = f"rank 2 (node n1, cuda:2): what it sent arrived wrong at 7 of 7 other ranks: {WRONG_ELEMENT}"
    assert parts(merged(with_problems("n1", "collectives", (FAIL, text)))) == [("n1", "cuda:2", RESEAT)]


def test_the_worst_is_first_and_missing_nodes_are_named() -> None:
    warned = with_problems("n1", "environment-too", (WARN, "cuda:0: power is capped at 350 W of 700 W"))
    reset = with_problems("n2", "environment-too", (FAIL, "cuda:0: bad pages of its memory are not yet retired"))
    broken = with_problems("n3", "memory", (FAIL, "cuda:7: memory at byte 0x10 holds 1 (bit 17)"))
    fleet = merged(warned, reset, broken, expected=Expected(names=("n1", "n2", "n3", "n4")))
    assert parts(fleet) == [
        ("n3", "cuda:7", RMA), ("n2", "cuda:0", RESET), ("n4", "", START), ("n1", "cuda:0", CONFIGURE),
    ]  # fmt: skip
    assert [suspect.verdict for suspect in fleet.suspects] == [FAIL, FAIL, INCOMPLETE, WARN]
    assert "3 uncorrectable" not in fleet.headline and "RMA n3 cuda:7" in fleet.headline


@pytest.mark.parametrize(
    ("reason", "act"),
    [
        ("Xid 79 of 0000:5b:00, 1 min ago: GPU has fallen off the bus.", REBOOT),
        ("Xid 48 of 0000:5b:00, 1 min ago: double bit error", RESET),
        ("GPU-n1-5: Xid 74 during the checks", RESEAT),
    ],
)
def test_an_address_or_a_uuid_names_the_gpu(reason: str, act: str) -> None:
    assert parts(merged(with_problems("n1", "environment-too", (FAIL, reason)))) == [("n1", "cuda:5", act)]


@pytest.mark.parametrize(("demand", "act"), [("reset the GPU", RESET), ("reboot the node", REBOOT)])
def test_what_the_driver_demands_is_done(demand: str, act: str) -> None:
    assert act_for("environment", "node", f"the driver demands: {demand}").verb == act


def test_findings_about_no_node_are_one_suspect_per_act() -> None:
    fleet = merged(node_report("n1"), expected=Expected(2, pending=["10.0.0.7", "10.0.0.8"]))
    assert parts(fleet) == [("", "", START), ("", "", RETEST)]
    assert [len(suspect.reasons) for suspect in fleet.suspects] == [1, 2]


@pytest.mark.parametrize("gpus", [None, 3, [3, None], [{"device": 3, "uuid": []}], {"device": "cuda:0"}])
def test_a_damaged_list_of_gpus_costs_the_identity_only(gpus: object) -> None:
    report = with_problems("n1", "memory", (FAIL, "cuda:7: memory at byte 0x10 holds 1 (bit 17)"))
    report["checks"][0]["facts"]["gpus"] = gpus
    assert parts(merged(report)) == [("n1", "cuda:7", RMA)]


# A reason of every kind of fault that is injected, and what to do about it.
KINDS = {
    "missing-gpu": (REBOOT, "torch sees 7 GPUs, 8 expected"),
    "wrong-version": (CONFIGURE, "torch is 0.0.0, 2.9 is required"),
    "ecc-error": (RESET, "3 uncorrectable memory errors since the driver started"),
    "row-remap": (RMA, "it could not remap a bad row of its memory: replace it"),
    "narrow-pcie": (RESEAT, "PCIe is ×8 wide, GPU and slot can do ×16, at rest"),
    "capped-power": (CONFIGURE, "power is capped at 350 W of 700 W"),
    "idle-slowdown": (TICKET, "hardware thermal slowdown at rest"),
    "lost-gpu": (REBOOT, "the driver has lost it: GPU is lost"),
    "xid": (REBOOT, "Xid 79 of 0000:3b:00, 1 min ago: GPU has fallen off the bus."),
    "small-shm": (CONFIGURE, "/dev/shm holds 64 MiB, programs with many GPUs need 1024"),
    "slow-gpu": (TICKET, "cuda:3 is slow: gemm_bf16 80 TFLOP/s is 80% of the median of its peers"),
    "stalling-gpu": (TICKET, "cuda:3 stalls: gemm_bf16 loses 40% of its time in calls that"),
    "wrong-products": (RMA, "cuda:1: gemm_bf16: 2 of 64 sampled products are wrong"),
    "hot-gpu": (TICKET, "cuda:1: hardware thermal slowdown in 3 of 9 readings"),
    "flipped-bit-memory": (RMA, "cuda:1: memory at byte 0x1f holds 3 for 1 (bit 17)"),
    "slow-link": (RESEAT, "cuda:0→cuda:1 is slow: link_peer 40 GB/s is 10% of the median of its peers"),
    "slow-host-link": (RESEAT, "cuda:0 is slow: link_h2d 4 GB/s is 10% of the median of its peers"),
    "corrupt-link": (RESEAT, "cuda:0→cuda:1 delivered 3 wrong words of 99"),
    "narrow-link": (RESEAT, "cuda:0: PCIe ran at generation 1 under load, it supports 5"),
    "narrow-lanes": (RESEAT, "cuda:0: PCIe ran ×8 wide under load, GPU and slot can do ×16"),
    "missing-nvlink": (RESEAT, "cuda:0: 17 of 18 NVLinks are up"),
    "flipped-bit-repeat": (RMA, "cuda:0: repeat 3 of bf16 gave other bits than 19 of its 20 repeats"),
    "odd-device": (RMA, "cuda:0: fp32 has other bits than 7 of 8 GPUs"),
    "wrong-integers": (RMA, "cuda:0: integer arithmetic gave a wrong result"),
    "wrong-element": (TICKET, "rank 1 (node a, cuda:1): all_reduce of 4 bytes, round 0: 1 of 9 elements are wrong"),
    "flipped-gradient": (RMA, "rank 1 (node a, cuda:1): its own gradient, before any communication, differs"),
    "diverged-parameter": (RETEST, "parameters differ after training: rank 2 (node a, cuda:2) against all others"),
    "slow-rank": (TICKET, "rank 3 (node a, cuda:3) is slow: 20 ms for work that takes 10 ms (2.00 x)"),
    "late-rank": (TICKET, "rank 3 (node a, cuda:3) is late: the others wait 100 ms for it"),
    "full-volume": (CONFIGURE, "rank 3 (node a, cuda:3): outputs (/out): full while the checkpoint was written"),
    "damaged-file": (TICKET, "rank 3 (node a, cuda:3): out (/out): what was read is not what was written, from byte 0"),
    "port-down": (TICKET, "mlx5_3/1: this network port is down, 3 like it are up"),
    "slow-port": (TICKET, "mlx5_3/1: this network port runs at 100 Gb/s, others like it at 400"),
    "far-adapter": (TICKET, "cuda:3: its nearest network adapter is on another NUMA node, 3 others have one nearer"),
    "recovery-action": (RESET, "the driver demands: reset the GPU"),
    "fabric-degraded": (TICKET, "cuda:3: the bandwidth of its fabric is degraded"),
    "other-program": (RETEST, "cuda:3: another program uses it: trainer (process 4711)"),
    "switch-error": (TICKET, "SXid 20034 of 0000:c1:00.0, 1 min ago: Fatal, Link 30 LTSSM Fault Up"),
    "slow-host-memory": (TICKET, "numa1 is slow: host_memory 90 GB/s is 50% of the median of its peers"),
    "slow-cpu": (TICKET, "numa1 CPU 17 is slow: host_compute 0.4 GB/s is 25% of the median of its peers"),
    "flipped-bit-product": (RMA, "cuda:0: gemm_fp8: row 3 and column 4 are wrong"),
    "nan-product": (RMA, "cuda:0: gemm_bf16: row 3 and column 4 are wrong"),
    "slow-memory": (RMA, "cuda:0 is slow: memory_copy 900 GB/s is 30% of the median of its peers"),
    "link-errors": (RESEAT, "cuda:3: 5 NVLink errors during this check"),
    "nan-loss": (TICKET, "rank 1 (node a, cuda:1): loss went from 2.3 to nan"),
    "slow-node": (TICKET, "node 3 (a) is bad: with node 4: 0.5 GB/s"),
    "corrupt-node": (TICKET, "node 3 (a) is bad: with node 4: wrong data"),
    "hung-node": (TICKET, "node 3 (a) is bad: with node 4: timed out"),
    "slow-node-link": (TICKET, "the link between node 3 (a) and node 4 (b) is bad"),
    "nan-gradient": (RMA, "rank 1 (node a, cuda:1): its own gradient, before any communication, differs from the "
                          "reference by inf"),
    "damaged-checkpoint": (TICKET, "rank 1 (node a, cuda:1): the checkpoint that it read is not the one that it wrote"),
}  # fmt: skip


def test_the_table_has_every_fault_of_a_part() -> None:
    """The faults of no check are those of the runner itself."""
    assert {each.id for each in fault_injection.known_faults(registry.load()) if each.check} == set(KINDS)


@pytest.mark.parametrize("fault", KINDS)
def test_the_act_fits_the_fault(fault: str) -> None:
    verb, reason = KINDS[fault]
    checks = registry.load()
    (known,) = [each for each in fault_injection.known_faults(checks) if each.id == fault]
    pattern = checks[known.check].spec.faults[fault]
    assert re.search(pattern, reason), "the reason in this table is not what the check writes"
    assert act_for(known.check, "node", reason).verb == verb


def test_every_kind_of_finding_has_an_act() -> None:
    """Also one that no row knows: by its check, or by what found it."""
    for name in (*registry.load(), "a check of later"):
        for found_by in FOUND_BY:
            act = act_for(name, found_by, "a reason that nobody has written")
            assert act.verb in acts.VERBS and act.advice
    known = {act.where for act in acts.OTHERWISE}
    assert set(FOUND_BY) <= known <= {*registry.load(), *FOUND_BY}


def test_a_disk_far_behind_the_others_is_found_although_it_has_no_limit() -> None:
    def report(index: int) -> dict:
        speed = 0.3 if index == 7 else 3.6 + 0.01 * index
        number = measurement(speed, "", "disk_read", "GB/s", judged=False)
        late = measurement(4.0 if index == 3 else 1.0 + 0.01 * index, "", "latency", "ms", "lower", judged=False)
        return with_problems(f"n{index}", "storage", measurements=[number, late])

    fleet = merged(*map(report, range(12)))
    assert parts(fleet) == [("n7", "", TICKET), ("n3", "", TICKET)]
    assert [suspect.verdict for suspect in fleet.suspects] == [FAIL, WARN]


def test_numbers_without_a_limit_that_spread_are_no_findings() -> None:
    def report(index: int) -> dict:
        number = measurement(3.0 + 0.05 * index, "", "disk_read", "GB/s", judged=False)
        no_direction = measurement(0.1 if index == 3 else 3.0, "", "threads", "", "", judged=False)
        return with_problems(f"n{index}", "storage", measurements=[number, no_direction])

    assert merged(*map(report, range(12))).suspects == []
