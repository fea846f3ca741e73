"""Suspects: one entry per part, with its identity, the worst first, and one act for every kind of finding."""

from __future__ import annotations

import re

import pytest

from gpuworker.accept import environment_problems, fault_injection, registry
from gpuworker.fleet.expected import Expected
from gpuworker.fleet.fleet_report import Fleet
from gpuworker.judgement import kinds
from gpuworker.judgement.kinds import CONFIGURE, REBOOT, RESEAT, RESET, RETEST, RMA, START, TICKET, WAIT, act_of
from gpuworker.judgement.report import FAIL, INCOMPLETE, WARN
from gpuworker.runtime.gpu_inventory import Gpu
from tests.helpers.fleet_reports import REPO, check, measurement, merged, node_report, problem

GPUS = 8
BAD = 4


def gpus_of(node: str) -> list[dict]:
    return [
        {"device": f"cuda:{i}", "uuid": f"GPU-{node}-{i}", "serial": f"165{i}-{node}", "bus_id": f"0000:{i}b:00.0"}
        for i in range(GPUS)
    ]


def with_problems(node: str, name: str, *problems: tuple[str, str, str], **parts: object) -> dict:
    """A node with one check that has these problems: (verdict, kind, reason), or with the parts before the reason."""
    report = node_report(node, (100.0,) * GPUS)
    report["checks"][0]["facts"]["gpus"] = gpus_of(node)
    worst = next((verdict for verdict in (FAIL, INCOMPLETE, WARN) if verdict in {each[0] for each in problems}), "PASS")
    problems = [of_part(*each) for each in problems]
    report["checks"].append(check(name, worst, "see problems" if problems else "", problems=problems, **parts))
    return report | {"verdict": worst, "reason": f"{name}: see problems" if problems else ""}


def of_part(verdict: str, kind: str, reason: str, *parts: str, **numbers: object) -> dict:
    """A problem of the part with which its reason begins, if no other is given."""
    first = re.match(r"cuda:\d+(→cuda:\d+)?|rank \d+|mlx5_\d/1|numa\d( CPU \d+)?", reason)
    return problem(verdict, kind, reason, *(parts or ([first[0]] if first else [])), **numbers)


def bad_nvlink() -> dict:
    pairs = [(a, b) for a in range(GPUS) for b in range(GPUS) if a != b and BAD in (a, b)]
    names = [f"cuda:{a}→cuda:{b}" for a, b in pairs]
    problems = [(FAIL, "nvlink-down", f"{name}: link_peer 40 GB/s is below the limit of 300") for name in names]
    problems.append((FAIL, "nvlink-down", f"cuda:{BAD}: 17 of 18 NVLinks are up"))
    numbers = [measurement(40.0, name, "link_peer", "GB/s") for name in names]
    return with_problems("n2", "links", *problems, measurements=numbers)


def parts(fleet: Fleet) -> list[tuple[str, str, str]]:
    return [(suspect.node, suspect.device, suspect.act) for suspect in fleet.suspects]


def test_a_gpu_with_a_bad_nvlink_is_one_suspect_with_its_identity() -> None:
    fleet = merged(node_report("n1", (100.0,) * GPUS), bad_nvlink())
    assert len(fleet.findings) > 14
    assert parts(fleet) == [("n2", f"cuda:{BAD}", RESEAT)]
    (suspect,) = fleet.suspects
    identity = (suspect.uuid, suspect.serial, suspect.pci, suspect.pod)
    assert identity == (f"GPU-n2-{BAD}", f"165{BAD}-n2", f"0000:{BAD}b:00.0", "accept-n2")
    assert any("40 GB/s" in reason for reason in suspect.reasons)


def test_a_single_bad_link_is_a_suspect_of_its_own() -> None:
    pairs = ("cuda:2→cuda:6", "cuda:6→cuda:2")
    numbers = [measurement(40.0, pair, "link_peer", "GB/s") for pair in pairs]
    problems = [(FAIL, "nvlink-down", f"{pair}: link_peer 40 GB/s is below the limit") for pair in pairs]
    fleet = merged(with_problems("n1", "links", *problems, measurements=numbers), node_report("n2", (100.0,) * GPUS))
    assert parts(fleet) == [("n1", "cuda:2↔cuda:6", RESEAT)]
    assert (fleet.suspects[0].uuid, fleet.suspects[0].serial) == ("GPU-n1-2, GPU-n1-6", "1652-n1, 1656-n1")


def test_a_network_port_is_a_suspect_of_its_own() -> None:
    report = with_problems("n1", "environment", (FAIL, "port-down", "mlx5_3/1: this network port is down"))
    fleet = merged(report, node_report("n2", (100.0,) * GPUS))
    assert parts(fleet) == [("n1", "mlx5_3/1", TICKET)]


def test_several_kinds_of_findings_about_one_gpu_are_one_suspect() -> None:
    """Of its node, of a comparison beside it, and of the fleet."""
    report = with_problems(
        "n1", "compute-too", (FAIL, "ecc", "cuda:1: 3 uncorrectable memory errors since the driver started"),
        (WARN, "slow", "cuda:1 is slow: gemm_bf16 80 TFLOP/s is 80% of the median of its peers"),
    )  # fmt: skip
    report["checks"][1]["measurements"][1]["value"] = 80.0
    fleet = merged(report, *(node_report(f"n{index}", (100.0,) * GPUS) for index in range(2, 5)))
    assert parts(fleet) == [("n1", "cuda:1", RESET)]
    assert len(fleet.suspects[0].reasons) == 3


WRONG_ELEMENT = "all_reduce of 4 bytes, round 0: 1 of 9 elements are wrong"


def test_wrong_collectives_on_most_gpus_accuse_the_fabric_and_not_every_receiver() -> None:
    texts = [f"rank {i} (node n1, cuda:{i}): {WRONG_ELEMENT}" for i in range(8)]
    fleet = merged(with_problems("n1", "collectives", *((FAIL, "wrong-elements", text) for text in texts)))
    assert parts(fleet) == [("n1", "GPU fabric", TICKET)]
    fleet = merged(with_problems("n1", "collectives", (FAIL, "wrong-elements", texts[3])))
    assert parts(fleet) == [("n1", "cuda:3", TICKET)]


def test_the_sender_of_wrong_data_is_the_suspect() -> None:
    text = f"rank 2 (node n1, cuda:2): what it sent arrived wrong at 7 of 7 other ranks: {WRONG_ELEMENT}"
    assert parts(merged(with_problems("n1", "collectives", (FAIL, "wrong-sender", text)))) == [("n1", "cuda:2", RESEAT)]


def test_the_worst_is_first_and_missing_nodes_are_named() -> None:
    warned = with_problems("n1", "environment-too", (WARN, "power-capped", "cuda:0: power is capped at 350 W of 700 W"))
    reset = with_problems("n2", "environment-too", (FAIL, "reset-needed", "cuda:0: bad pages are not yet retired"))
    broken = with_problems("n3", "memory", (FAIL, "wrong-memory", "cuda:7: memory at byte 0x10 holds 1 (bit 17)"))
    fleet = merged(warned, reset, broken, expected=Expected(names=("n1", "n2", "n3", "n4")))
    assert parts(fleet) == [
        ("n3", "cuda:7", RMA), ("n2", "cuda:0", RESET), ("n4", "", START), ("n1", "cuda:0", CONFIGURE),
    ]  # fmt: skip
    assert [suspect.verdict for suspect in fleet.suspects] == [FAIL, FAIL, INCOMPLETE, WARN]


@pytest.mark.parametrize(
    ("kind", "part", "act"),
    [("xid-reboot", "0000:5b:00", REBOOT), ("xid-reset", "0000:5B:00", RESET), ("xid-nvlink", "GPU-n1-5", RESEAT)],
)
def test_an_address_or_a_uuid_names_the_gpu(kind: str, part: str, act: str) -> None:
    report = with_problems("n1", "environment-too", (FAIL, kind, "an Xid", part))
    assert parts(merged(report)) == [("n1", "cuda:5", act)]


@pytest.mark.parametrize(("action", "act"), [(1, RESET), (2, REBOOT), (4, RESET), (7, REBOOT)])
def test_what_the_driver_demands_is_done(action: int, act: str) -> None:
    ((_, kind, _), *_) = environment_problems.gpu_problems(Gpu("cuda:0", recovery_action=action))
    assert act_of(kind, "environment").verb == act


def test_findings_about_no_node_are_one_suspect_per_act() -> None:
    pods = {name: ("", "testing", "runs") for name in ("a", "b")}
    fleet = merged(node_report("n1"), expected=Expected(2, unreported=pods))
    assert parts(fleet) == [("", "", START), ("", "", WAIT)]
    assert [len(suspect.reasons) for suspect in fleet.suspects] == [1, 2]


@pytest.mark.parametrize("gpus", [None, 3, [3, None], [{"device": 3, "uuid": []}], {"device": "cuda:0"}])
def test_a_damaged_list_of_gpus_costs_the_identity_only(gpus: object) -> None:
    report = with_problems("n1", "memory", (FAIL, "wrong-memory", "cuda:7: memory at byte 0x10 holds 1 (bit 17)"))
    report["checks"][0]["facts"]["gpus"] = gpus
    assert parts(merged(report)) == [("n1", "cuda:7", RMA)]


# Every kind of fault that is injected, and what to do about it.
ACTS = {
    REBOOT: ("missing-gpu", "lost-gpu", "xid"),
    RESET: ("ecc-error", "recovery-action"),
    RMA: (
        "row-remap", "wrong-products", "flipped-bit-memory", "flipped-bit-repeat", "odd-device", "wrong-integers",
        "flipped-gradient", "nan-gradient", "flipped-bit-product", "nan-product",
    ),
    RESEAT: (
        "narrow-pcie", "slow-link", "slow-host-link", "corrupt-link", "narrow-link", "narrow-lanes", "missing-nvlink",
        "link-errors",
    ),
    CONFIGURE: ("wrong-version", "capped-power", "small-shm", "full-volume"),
    RETEST: ("diverged-parameter", "other-program", "slow-memory"),
    TICKET: (
        "idle-slowdown", "slow-gpu", "stalling-gpu", "hot-gpu", "wrong-element", "slow-rank", "late-rank",
        "damaged-file", "port-down", "slow-port", "far-adapter", "fabric-degraded", "switch-error", "slow-host-memory",
        "slow-cpu", "nan-loss", "slow-node", "corrupt-node", "hung-node", "slow-node-link", "damaged-checkpoint",
    ),
}  # fmt: skip
MEASURES = {"slow-link": "link_peer", "slow-host-link": "link_h2d"}


def test_the_act_fits_every_fault_of_a_part() -> None:
    """The faults of no check are those of the runner itself."""
    found = {}
    for fault in fault_injection.known_faults(registry.load()):
        if fault.check:
            found[fault.id] = act_of(fault.kind, fault.check, MEASURES.get(fault.id, "")).verb
    assert found == {fault: verb for verb, faults in ACTS.items() for fault in faults}


def test_every_kind_is_used_and_has_an_act() -> None:
    """Kinds that no code writes, or that code writes and the table lacks, are slips of the pen."""
    sources = [path.read_text() for path in (REPO / "worker/src/gpuworker").rglob("*.py")]
    text = "\n".join(source for source in sources if "KINDS = {" not in source)
    for name, kind in kinds.KINDS.items():
        assert f'"{name}"' in text, name
        assert kind.act is None or kind.act.verb in kinds.VERBS
    written = re.findall(r'\.(?:fail|warn|incomplete)\(\s*"([a-z0-9-]+)"', text)
    assert len(written) > 50 and set(written) <= set(kinds.KINDS)


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
