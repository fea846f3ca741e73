"""Suspects: one entry per part, with its identity, the worst first, and one act for every kind of
finding.
"""

from __future__ import annotations

import re

import pytest

from gpuworker.accept import environment_problems, fault_injection
from gpuworker.judgement import kinds, registry
from gpuworker.judgement.fleet_report import Fleet
from gpuworker.judgement.kinds import (
    CONFIGURE,
    REBOOT,
    RESEAT,
    RESET,
    RETEST,
    RMA,
    START,
    TICKET,
    act_of,
)
from gpuworker.judgement.report import FAIL, INCOMPLETE, WARN
from gpuworker.judgement.sources import Expected
from gpuworker.runtime.gpu_inventory import Gpu
from tests.helpers.fleet_reports import REPO, check, merged, node_report, problem

GPUS = 8
BAD = 4


def gpus_of(node: str) -> list[dict]:
    return [
        {
            "device": f"cuda:{i}",
            "uuid": f"GPU-{node}-{i}",
            "serial": f"165{i}-{node}",
            "bus_id": f"0000:{i}b:00.0",
        }
        for i in range(GPUS)
    ]


def with_problems(node: str, name: str, *problems: tuple[str, str, str], **parts: object) -> dict:
    """A node with one check that has these problems: (verdict, kind, reason), or with the parts
    before the reason.
    """
    report = node_report(node, (100.0,) * GPUS)
    report["checks"][0]["facts"]["gpus"] = gpus_of(node)
    worst = next(
        (
            verdict
            for verdict in (FAIL, INCOMPLETE, WARN)
            if verdict in {each[0] for each in problems}
        ),
        "PASS",
    )
    problems = [of_part(*each) for each in problems]
    report["checks"].append(
        check(name, worst, "see problems" if problems else "", problems=problems, **parts)
    )
    return report | {"verdict": worst, "reason": f"{name}: see problems" if problems else ""}


def of_part(verdict: str, kind: str, reason: str, *parts: str, **numbers: object) -> dict:
    """A problem of the part with which its reason begins, if no other is given."""
    first = re.match(r"cuda:\d+(→cuda:\d+)?|rank \d+|mlx5_\d/1|numa\d( CPU \d+)?", reason)
    return problem(verdict, kind, reason, *(parts or ([first[0]] if first else [])), **numbers)


def parts(fleet: Fleet) -> list[tuple[str, str, str]]:
    return [(suspect.node, suspect.device, suspect.act) for suspect in fleet.suspects]


def test_the_worst_is_first_and_missing_nodes_are_named() -> None:
    warned = with_problems(
        "n1", "environment-too", (WARN, "power-capped", "cuda:0: power is capped at 350 W of 700 W")
    )
    reset = with_problems(
        "n2", "environment-too", (FAIL, "reset-needed", "cuda:0: bad pages are not yet retired")
    )
    broken = with_problems(
        "n3", "memory", (FAIL, "wrong-memory", "cuda:7: memory at byte 0x10 holds 1 (bit 17)")
    )
    fleet = merged(warned, reset, broken, expected=Expected(names=("n1", "n2", "n3", "n4")))
    assert parts(fleet) == [
        ("n3", "cuda:7", RMA), ("n2", "cuda:0", RESET), ("n4", "", START), ("n1", "cuda:0", CONFIGURE),
    ]  # fmt: skip
    assert [suspect.verdict for suspect in fleet.suspects] == [FAIL, FAIL, INCOMPLETE, WARN]


@pytest.mark.parametrize(
    ("kind", "part", "act"),
    [
        ("xid-reboot", "0000:5b:00", REBOOT),
        ("xid-reset", "0000:5B:00", RESET),
        ("xid-nvlink", "GPU-n1-5", RESEAT),
    ],
)
def test_an_address_or_a_uuid_names_the_gpu(kind: str, part: str, act: str) -> None:
    report = with_problems("n1", "environment-too", (FAIL, kind, "an Xid", part))
    assert parts(merged(report)) == [("n1", "cuda:5", act)]


@pytest.mark.parametrize(("action", "act"), [(1, RESET), (2, REBOOT), (4, RESET), (7, REBOOT)])
def test_what_the_driver_demands_is_done(action: int, act: str) -> None:
    ((_, kind, _), *_) = environment_problems.gpu_problems(Gpu("cuda:0", recovery_action=action))
    assert act_of(kind, "environment").verb == act


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
