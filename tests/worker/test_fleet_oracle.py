"""Random fleets with known faults: every fault is named with its act, and nothing else is.

What must be read follows from what was injected, and not from the judge. Each fleet is merged, and
posted over HTTP.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from gpuworker.judgement import registry
from gpuworker.judgement.kinds import CONFIGURE, REBOOT, RESEAT, RESET, RETEST, RMA, START
from gpuworker.judgement.report import FAIL, INCOMPLETE, PASS, WARN, WORST_FIRST, Requested
from gpuworker.judgement.sources import Expected
from gpuworker.runtime import gpu_specs
from tests.helpers.simulated_node import Hardware
from tests.helpers.single_faults import FAULTS
from tests.worker.test_every_model import MODELS, NAMES
from tests.worker.test_fleet_adversarial import fleet_of, number, part_of, posted

ANY = (CONFIGURE, REBOOT, RESEAT, RESET, RETEST, RMA, START, "open a ticket")
PROVEN = {RMA, RESET, REBOOT, RESEAT}  # acts that need a proof
# Fault of the hardware -> the check that must see it, and the least number of GPUs of the node.
SEEN_BY = {
    "environment": (
        "application clocks", "slowdown at rest", "ECC off", "memory errors", "row not remapped", "pages pending",
        "demand of the driver", "degraded fabric", "another program", "unknown sensors", "prohibited", "Xid 48",
        "far adapter", "port down", "port slow", "lost, the driver lists it", "lost, with an Xid",
    ),
    "compute": ("slow GPU", "capped power", "hot GPU", "stalling GPU", "wrong products"),
    "memory": ("slow memory", "flipped bit"),
    "links": ("narrow PCIe", "one NVLink", "NVLinks of a GPU", "wrong words"),
    "repeatability": ("other bits",),
    "correctness": ("wrong gradient", "diverged"),
    "storage": ("full volume",),
}  # fmt: skip
OF_CHECK = {name: check for check, names in SEEN_BY.items() for name in names}
LEAST = {
    "one NVLink": 3,
    "NVLinks of a GPU": 4,
    "wrong words": 4,
    "diverged": 3,
    "wrong gradient": 2,
    "other bits": 3,
    "far adapter": 3,
    "lost, the driver lists it": 2,
    "lost, with an Xid": 2,
}
COMPARED = {"slow GPU", "hot GPU", "slow memory", "capped power"}  # alone: unknown


class Answer(NamedTuple):
    """`must`: else the part may be named, as where nothing shows which of two GPUs is wrong."""

    node: str
    part: str
    acts: tuple[str, ...]
    verdicts: tuple[str, ...]
    must: bool = True


class Fleet:
    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.gpus = rng.choice((1, 2, 4, 8, 8))
        self.names = [f"gpu-{index}" for index in range(rng.choice((1, 2, 3, 5, 8, 13, 40)))]
        every = [*registry.node_checks()]
        some = {"host", *rng.sample(every, rng.randint(1, 6))}  # which needs no second GPU
        self.checks = sorted(some if rng.random() < 0.4 else every)
        models = rng.sample([NAMES.get(m, f"NVIDIA {m}") for m in MODELS] + ["NVIDIA Z1"], 2)
        self.models = [models[rng.random() < 0.3] for _ in self.names]
        self.idle = rng.sample(range(len(self.names)), len(self.names))  # nodes without a fault
        self.reports = [self.report(index) for index in range(len(self.names))]
        self.answers: list[Answer] = []
        for _ in range(min(rng.randrange(4), len(self.names))):
            if self.idle:
                self.inject(self.idle.pop())
        self.reports = [report for report in self.reports if report]

    def report(self, index: int, *changes: Callable[[Hardware], object]) -> dict:
        hardware = Hardware(self.names[index], index, self.gpus, self.models[index])
        for change in changes:
            change(hardware)
        report = hardware.report()
        report["requested"]["checks"] = list(self.asked)
        kept = [*self.checks, "xids", *["environment"] * bool(changes)]
        report["checks"] = [check for check in report["checks"] if check["name"] in kept]
        return report

    @property
    def asked(self) -> tuple[str, ...]:
        return tuple(self.checks) if len(self.checks) < len(registry.node_checks()) else ()

    @property
    def expected(self) -> Expected:
        asked = Requested("cuda", self.gpus, "quick", self.asked)
        return Expected(names=self.names, run_id="1", requested=asked)

    def peers(self, index: int) -> int:
        """Nodes of the same model, with this one."""
        return self.models.count(self.models[index])

    def inject(self, index: int) -> None:
        if self.rng.random() < 0.5:
            self.break_hardware(index)
        else:
            self.rng.choice([*OF_REPORT.values()])(self, index)

    def answer(
        self, index: int, part: str, acts: object, *verdicts: str, must: bool = True
    ) -> None:
        acts = (acts,) if isinstance(acts, str) else acts
        self.answers.append(Answer(self.names[index], part, acts, verdicts, must))

    def break_hardware(self, index: int) -> None:
        linked = gpu_specs.figures("nvlinks", self.models[index])
        known = [n for n in OF_CHECK if self.gpus >= LEAST.get(n, 1) and (linked or "NVL" not in n)]
        name = self.rng.choice(known)
        bad, fault = self.rng.randrange(self.gpus), FAULTS[name]
        self.reports[index] = self.report(index, lambda node: fault.change(node, bad))
        a, b = sorted((bad, (bad + 1) % self.gpus))
        verdicts = (FAIL,) if set(fault.acts) <= PROVEN else (FAIL, INCOMPLETE, WARN)
        alone = self.gpus * self.peers(index) < 5 and self.gpus < 3
        known = OF_CHECK[name] in (*self.checks, "environment") and not (alone and name in COMPARED)
        self.answer(index, fault.part.format(bad=bad, a=a, b=b), fault.acts, *verdicts, must=known)
        if not known:  # the training of all may still show it
            self.answer(index, f"all {self.gpus} GPUs", ANY, *verdicts, must=False)


def _number(value: Callable[[float], object]) -> Callable[[Fleet, int], None]:
    """A number of a GPU that is none, or that no hardware reaches."""

    def change(fleet: Fleet, index: int) -> None:
        found = [
            m
            for check in fleet.reports[index]["checks"]
            for m in check["measurements"]
            if m["device"].startswith("cuda") and m["name"] in PHYSICAL
        ]
        if found:
            chosen = fleet.rng.choice(found)
            chosen["value"] = value(chosen["value"])
            part = "↔".join(sorted(chosen["device"].split("→")))
            figures = gpu_specs.figures(chosen["name"], fleet.models[index])
            known = bool(figures) or chosen["name"].startswith("link") or not chosen["value"]
            fleet.answer(index, part, RETEST, INCOMPLETE, must=known)

    return change


PHYSICAL = (
    "gemm_bf16",
    "gemm_fp16",
    "memory_copy",
    "memory_triad",
    "link_h2d",
    "link_d2h",
    "link_peer",
)


def _report(act: str, **fields: object) -> Callable[[Fleet, int], None]:
    """A report that is none of this run."""

    def change(fleet: Fleet, index: int) -> None:
        fleet.reports[index] |= fields
        fleet.answer(index, "", act, INCOMPLETE)

    return change


def _asked(act: str, **fields: object) -> Callable[[Fleet, int], None]:
    """A report of other work than was requested."""

    def change(fleet: Fleet, index: int) -> None:
        fleet.reports[index]["requested"] |= fields
        fleet.answer(index, "", act, INCOMPLETE)

    return change


def days_before(fleet: Fleet, index: int) -> None:
    fleet.reports[index]["started"] = "2026-01-02T10:00:00+00:00"
    fleet.answer(index, "", (RETEST, CONFIGURE), INCOMPLETE, must=len(fleet.names) > 2)


def missing(fleet: Fleet, index: int) -> None:
    fleet.reports[index] = {}
    fleet.answer(index, "", START, INCOMPLETE)


def fewer_checks(fleet: Fleet, index: int) -> None:
    if len(fleet.reports[index]["checks"]) > 1:
        del fleet.reports[index]["checks"][-1]
        fleet.answer(index, "", RETEST, INCOMPLETE)


def half_tested(fleet: Fleet, index: int) -> None:
    if "memory" in fleet.checks:
        device = f"cuda:{fleet.rng.randrange(fleet.gpus)}"
        number("memory_tested", 0.3, device, of=(index,))(fleet.reports)
        fleet.answer(index, device, RETEST, INCOMPLETE)


def half_size(fleet: Fleet, index: int) -> None:
    if "memory" in fleet.checks:
        device = f"cuda:{fleet.rng.randrange(fleet.gpus)}"
        part_of(fleet.reports[index], "memory")["facts"]["memory_gib"][device] *= 0.5
        number("memory_tested", 0.5, device, of=(index,))(fleet.reports)
        known = gpu_specs.figures("memory_gb", fleet.models[index]) or fleet.gpus > 2
        fleet.answer(index, device, RMA, FAIL, must=bool(known))


def other_software(fleet: Fleet, index: int) -> None:
    fleet.reports[index]["facts"]["torch"] = "2.5"
    fleet.answer(index, "", CONFIGURE, WARN, must=fleet.peers(index) > 2)


def same_wrong_bits(fleet: Fleet, index: int) -> None:
    """On most GPUs of the node, while most of the model are right."""
    wrong = fleet.gpus // 2 + 1
    if "repeatability" in fleet.checks and fleet.gpus * fleet.peers(index) > 2 * wrong + 1:
        hashes = part_of(fleet.reports[index], "repeatability")["hashes"]
        for device in (f"cuda:{place}" for place in range(wrong)):
            hashes |= {k: v[::-1] for k, v in hashes.items() if k.endswith(f" {device}")}
            part = f"all {wrong} GPUs" if wrong == fleet.gpus > 1 else device
            if part == device or device == "cuda:0":
                fleet.answer(index, part, (RMA, "open a ticket"), FAIL)


def copied(fleet: Fleet, index: int) -> None:
    """The numbers of another node, under the names of this one."""
    if fleet.idle:
        other = fleet.idle.pop()
        if fleet.models[other] == fleet.models[index] and "compute" in fleet.checks:
            for own, its in zip(*(fleet.reports[i]["checks"] for i in (index, other)), strict=True):
                own["measurements"] = copy.deepcopy(its["measurements"])
            for each in (index, other):  # few numbers may be equal by chance
                fleet.answer(each, "", RETEST, INCOMPLETE, must=fleet.gpus > 3)


def same_gpu(fleet: Fleet, index: int) -> None:
    """The UUID of a GPU of another node."""
    if fleet.idle and "environment" in fleet.checks:
        other, device = fleet.idle.pop(), fleet.rng.randrange(fleet.gpus)
        own, its = (
            part_of(fleet.reports[i], "environment")["facts"]["gpus"] for i in (index, other)
        )
        own[device]["uuid"] = its[device]["uuid"]
        for each in (index, other):
            fleet.answer(each, f"cuda:{device}", RETEST, INCOMPLETE)


def other_name(fleet: Fleet, index: int) -> None:
    """A report under the name of another node."""
    if fleet.idle:
        other = fleet.idle.pop()
        fleet.reports[index]["node"] = fleet.names[other]
        fleet.answer(index, "", START, INCOMPLETE)
        fleet.answer(other, "", ANY, PASS, WARN, INCOMPLETE, must=False)


def harmless(fleet: Fleet, index: int) -> None:
    """Slower by what is noise."""
    for name in PHYSICAL:
        number(name, 0.975, "cuda:0", of=(index,))(fleet.reports)


def unreadable(fleet: Fleet, index: int) -> None:
    check = fleet.rng.choice(fleet.reports[index]["checks"])
    check[fleet.rng.choice(("measurements", "facts", "duration_s"))] = "text"
    fleet.answer(index, "", (RETEST, START), INCOMPLETE)


OF_REPORT = {
    "no number": _number(lambda value: None), "negative": _number(lambda value: -value),
    "above physics": _number(lambda value: value * 1000),
    "stale": _report(START, run_id="0"), "of the future": _report(CONFIGURE, started="2099-01-01T00:00:00+00:00"),
    "days before": days_before,
    "rehearsal": _asked(RETEST, device="cpu"), "level": _asked(RETEST, level="prolog"),
    "injected": _asked(RETEST, inject="slow-gpu"),
    "other GPUs asked": _asked(CONFIGURE, gpus=99), "newer": _report(RETEST, schema_version=99),
    "missing": missing, "fewer checks": fewer_checks, "half-tested": half_tested, "half size": half_size,
    "software": other_software, "same wrong bits": same_wrong_bits, "copied": copied, "same GPU": same_gpu,
    "other name": other_name, "harmless": harmless, "unreadable": unreadable,
}  # fmt: skip


def wrong(fleet: Fleet, found: dict, refused: set[str]) -> list[str]:
    """What the owner would not want to read. `refused`: nodes whose report the collector refused."""
    answers = [answer for answer in fleet.answers if answer.node not in refused]
    answers += [Answer(name, "", (START,), (INCOMPLETE,)) for name in refused]
    faulty = {answer.node for answer in answers}
    named = {(s["node"], s["device"]): s["act"] for s in found["suspects"]}
    errors = [f"not named: {a}" for a in answers if a.must and named.get(a[:2]) not in a.acts]
    errors += [
        f"named: {part} {act}"
        for part, act in named.items()
        if not any(part == a[:2] and act in a.acts for a in answers)
    ]
    verdicts = {node["node"]: node["verdict"] for node in found["nodes"]}
    for answer in answers:
        if answer.must and verdicts.get(answer.node, INCOMPLETE) not in answer.verdicts:
            errors.append(f"{verdicts[answer.node]} of {answer}")
    errors += [
        f"finding of a healthy node: {finding}"
        for finding in found["findings"]
        if finding["node"] not in faulty and finding["kind"] != "no-figure"
    ]
    gone = {INCOMPLETE} if set(fleet.names) - set(verdicts) else set()
    worst = next(v for v in WORST_FIRST if v in {*verdicts.values(), *gone})
    return errors + [f"fleet {found['verdict']}"] * (found["verdict"] != worst)


@pytest.mark.parametrize("seed", range(150))
def test_what_was_injected_is_named_and_nothing_else(seed: int, tmp_path: Path) -> None:
    fleet = Fleet(seed)
    assert wrong(fleet, fleet_of(fleet.reports, fleet.expected), set()) == []
    found, refused = posted(fleet.reports, fleet.expected, tmp_path)
    assert wrong(fleet, found, refused) == []
