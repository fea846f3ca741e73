"""Judgement of a report: the one function from which the node and the collector have the
verdict.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpuworker.judgement import registry
from gpuworker.judgement.check_spec import Plan, Spec
from gpuworker.judgement.limits import Limits
from gpuworker.judgement.limits import problems as limit_problems
from gpuworker.judgement.report import (
    FAIL,
    INCOMPLETE,
    SKIP,
    WORLD,
    WORST_FIRST,
    Evidence,
    Report,
    Requested,
    describe,
)
from gpuworker.judgement.verdict import Check, judge_check, of_problems
from gpuworker.runtime import gpu_specs

EARLIEST = datetime.datetime(2025, 1, 1, tzinfo=datetime.timezone.utc)  # this program is younger
ROUNDING_S = 1.0  # of times of checks
CLOCK_TOLERANCE_S = 300  # nodes without a synchronised clock differ by minutes


@dataclass
class Judged:
    """A report with the verdicts of its checks. The last check, without a name, is about the
    report itself.
    """

    report: Report
    checks: list[Check] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """PASS needs evidence: at least one check that passed, and none that did worse."""
        found = {check.verdict for check in self.checks}
        return next((verdict for verdict in WORST_FIRST if verdict in found), INCOMPLETE)

    @property
    def reason(self) -> str:
        worst = [check for check in self.checks if check.verdict == self.verdict and check.reason]
        return "; ".join(f"{check.name}: {check.reason}".removeprefix(": ") for check in worst)

    @property
    def comparable(self) -> bool:
        """Whether its numbers say something about those of others: not with a fault that nobody
        requested, nor by a clock that is wrong.
        """
        doubts = {p.kind for check in self.checks if not check.name for p in check.problems}
        return not {"contradiction", "clock"} & doubts

    @property
    def left_out(self) -> list[str]:
        """Checks of the level that were not requested."""
        asked = self.report.requested
        if not asked.checks or self.report.scope == WORLD:
            return []
        known = at_level(asked.level, registry.node_checks())
        return [name for name in known if name not in asked.checks]

    @property
    def summary(self) -> str:
        """One line for people: the verdict, then the reason or the numbers."""
        asked = self.report.requested
        notes = ["CPU rehearsal"] * (asked.device == "cpu")
        notes += [f"{asked.inject} injected"] * bool(asked.inject)
        notes += [f"{', '.join(self.left_out)} left out"] * bool(self.left_out)
        note = f" ({'; '.join(notes)})" if notes else ""
        return f"{self.verdict}{note}: {self.reason or ', '.join(self.numbers)}"

    @property
    def numbers(self) -> list[str]:
        return [text for check in self.checks for text in describe(check.numbers)]

    @property
    def termination_message(self) -> str:
        """The summary, then the numbers, which Kubernetes may truncate."""
        return "\n".join([self.summary, *self.numbers] if self.reason else [self.summary])

    def to_dict(self) -> dict:
        """For people who read the file of the report."""
        verdicts = {check.name: check.verdict for check in self.checks if check.name}
        return {"verdict": self.verdict, "reason": self.reason, "verdicts": verdicts}


def judge(
    report: Report, requested: Requested | None = None, received: datetime.datetime | None = None
) -> Judged:
    """The verdict on a report. `requested`: by default what the report says; `received`: by
    default now.
    """
    asked, models = requested or report.requested, tuple(report.models)
    # the fault and the ranks of a world are its own
    if report.scope == WORLD and requested != report.requested:
        asked = dataclasses.replace(asked, inject="", gpus=report.requested.gpus)
    whole = Evidence()
    _compare_request(report, asked, whole)
    known = registry.world_checks() if report.scope == WORLD else registry.node_checks()
    if report.scope == WORLD:
        known = {name: check.for_nodes(len(report.world.nodes)) for name, check in known.items()}
        _world(report, whole)
    else:
        known = {name: check.at(asked.level) for name, check in known.items()}
        _node(report, asked, known, whole)
    received = received or datetime.datetime.now(datetime.timezone.utc)
    for problem in _clock_problems(report, received):
        whole.incomplete("clock", f"{problem}: is the clock of the node right?")
    limits, refused = limits_of(asked, models)
    for words in refused:
        whole.incomplete("bad-limit", words)
    plan = Plan(asked.device, asked.gpus, asked.level, models=models)
    # Evidence of another device is no evidence of this one.
    seen = report.checks if report.requested.device == asked.device else []
    checks = [
        judge_check(known[evidence.name], evidence, limits, plan) if evidence.name in known
        else _of_runner(evidence) for evidence in seen
    ]  # fmt: skip
    if {check.verdict for check in checks} <= {SKIP}:
        whole.incomplete("missing", "no check passed or failed")
    if whole.problems:
        checks.append(of_problems("", whole))
    return Judged(report, checks)


def limits_of(asked: Requested, models: tuple[str, ...]) -> tuple[Limits, list[str]]:
    """The limits of GPUs of these models, and why limits of the user are refused."""
    refused = limit_problems(asked.limits, models)
    usable = {key: value for key, value in asked.limits.items() if key not in refused}
    return Limits(models if asked.device == "cuda" else (), usable), list(refused.values())


def at_level(level: str, known: dict[str, Spec]) -> list[str]:
    return [name for name, check in known.items() if level in check.seconds]


def _of_runner(evidence: Evidence) -> Check:
    found = dataclasses.replace(evidence, problems=list(evidence.problems))
    if not found.problems:
        words = "no check of this name can pass: it reports only problems"
        found.incomplete("contradiction", words)
    return of_problems(found.name, found)


def _compare_request(report: Report, asked: Requested, whole: Evidence) -> None:
    compared = ("device", "inject") if report.scope == WORLD else ("device", "level", "inject")
    for what in compared:
        found, wanted = getattr(report.requested, what), getattr(asked, what)
        if found != wanted:
            words = f"the {what} of the report is {found!r:.80}, requested was {wanted!r}"
            whole.incomplete("contradiction", words)


def _node(report: Report, asked: Requested, known: dict[str, Spec], whole: Evidence) -> None:
    seen, expected = len(report.models), report.requested.gpus
    if seen != asked.gpus or expected != asked.gpus:
        words = f"{seen} of {expected} GPUs seen, requested were {asked.gpus}"
        kind = "gpus-missing" if expected == asked.gpus else "nodes-expected"
        whole.incomplete(kind, words, seen=seen, expected=asked.gpus)
    names = [evidence.name for evidence in report.checks]
    lacking = [name for name in asked.checks or at_level(asked.level, known) if name not in names]
    ended = any(e.has(INCOMPLETE, FAIL) for e in report.checks if e.name not in known)
    if lacking and not ended and not whole.problems:  # else it is known why
        whole.incomplete("missing", f"the report lacks what was requested: {', '.join(lacking)}")
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            whole.incomplete(
                "contradiction", f"the check {name} stands in the report {names.count(name)} times"
            )
    _other_models(report, whole)


def _world(report: Report, whole: Evidence) -> None:
    """Nobody requests the checks of a world, which ddp-tests runs on their own."""
    size, ranks = report.world.size, [rank for node in report.world.nodes for rank in node.ranks]
    names = {node.node for node in report.world.nodes if node.ranks}
    several = len(names) < len(report.world.nodes)  # or none
    if len(ranks) != size or set(ranks) != set(range(size)) or several:
        whole.incomplete(
            "contradiction",
            f"the ranks of its nodes are not the {size} ranks of its world, or a node has none",
        )
    gpus = size if report.requested.device == "cuda" else 0
    if len(report.models) != gpus:
        words = f"the models of {len(report.models)} GPUs are named, its ranks have {gpus}"
        whole.incomplete("missing", words)


def _other_models(report: Report, whole: Evidence) -> None:
    """GPUs that are judged by the figures of another model than the one that the driver names."""
    for gpu in report.listed("gpus"):
        index = "" if gpu.get("mig") else str(gpu.get("device")).removeprefix("cuda:")
        if index.isdecimal() and int(index) < len(report.models):
            name, model = str(gpu.get("name", "")), report.models[int(index)]
            if name and gpu_specs.entry(name) != gpu_specs.entry(model):
                words = f"cuda:{index}: torch names it {model:.80}, the driver {name:.80}"
                whole.incomplete("contradiction", words, f"cuda:{index}")


def _clock_problems(report: Report, received: datetime.datetime) -> Iterator[str]:
    """Times that cannot be."""
    begin, took_s = started(report), report.duration_s
    done = [evidence for evidence in report.checks if evidence.measurements]
    since_s = (received - begin).total_seconds() + CLOCK_TOLERANCE_S
    if begin < EARLIEST:
        yield f"started {report.started}, which is before there were such reports"
    if since_s < 0:
        yield f"started {report.started}, which is in the future"
    elif took_s > since_s:
        yield f"took {took_s:.4g} s since {report.started}, so it ends in the future"
    if timeless := [evidence.name for evidence in done if not evidence.duration_s > 0]:
        yield f"{', '.join(timeless)}: measured in no time"
    if not (sum_s := sum(evidence.duration_s for evidence in done)) <= took_s + ROUNDING_S:
        yield f"took {took_s:.4g} s in all and {sum_s:.4g} s for its checks"


def started(report: Report) -> datetime.datetime:
    return datetime.datetime.fromisoformat(report.started)
