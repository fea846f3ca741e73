"""Second judgement of a report: does it hold the evidence that was requested, do its numbers meet the limits?

A reader of reports cannot rely on their verdicts: a program, a disk or a person may have changed them. The evidence of
each check is judged again by the rules that judged it on the node.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuworker.accept import registry
from gpuworker.accept.check_spec import LEVELS, WORLD, Evidence, Measure, Plan, Registered
from gpuworker.accept.limits import RULES, Limits, key_and_number
from gpuworker.accept.limits import problems as limit_problems
from gpuworker.accept.report import FAIL, INCOMPLETE, PASS, SKIP, WARN, WORST_FIRST, Measurement
from gpuworker.accept.verdict import impossible, judge
from gpuworker.runtime import gpu_specs

CLAIM = 0.95  # of what a model can do: rates of PCIe and NVLink are rounded


@dataclass(frozen=True)
class Requested:
    """What every node was requested to test. No `checks`: all of the level."""

    device: str
    gpus: int
    level: str
    checks: tuple[str, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict, hash=False)
    inject: str = ""


JUDGEMENT = ("limit", "warn_limit", "limit_source", "margin", "better", "judged")  # fields of a measurement


class Objection(NamedTuple):
    """Why a report does not prove its verdict. An empty check is the whole report."""

    verdict: str
    reason: str
    check: str = ""


limit = key_and_number  # for argparse


def known_levels() -> tuple[str, ...]:
    return LEVELS


def known_checks() -> list[str]:
    return list(registry.node_checks())


def known_limits() -> set[str]:
    """Keys of the table, and names of numbers."""
    return set(RULES) | {name for check in registry.node_checks().values() for name in check.spec.measures}


@functools.cache
def noises() -> dict[tuple[str, str], float]:
    """(check, number) -> differences between nodes that prove nothing."""
    found = registry.node_checks().items()
    return {(check, name): measure.noise for check, each in found for name, measure in each.spec.measures.items()}


def impossible_number(check: str, name: str, value: float, unit: str, better: str) -> str:
    """Why a number of a report cannot have been measured; "" if it can."""
    known = registry.node_checks().get(check)
    measure = known.spec.measures.get(name) if known else None
    bounds = (measure.least, measure.most) if measure and measure.unit == unit else ()
    return impossible(value, unit, better, *bounds)


def objections(report: dict, requested: Requested) -> Iterator[Objection]:
    """Everything that a report of scope "node" lacks or that its numbers contradict.

    Its numbers get the limits by which they are judged here, whatever the report claims.
    """
    for what, found, wanted in (
        ("device", report["device"], requested.device),
        ("level", report["level"], requested.level),
        ("injected fault", report["injected"], requested.inject),
    ):
        if found != wanted:
            yield Objection(INCOMPLETE, f"the {what} of the report is {found!r:.80}, requested was {wanted!r}")
    coverage, models = report["coverage"], report["facts"].get("gpu_models")
    models = tuple(map(str, models)) if isinstance(models, list) else ()
    counts = coverage["gpus_seen"], coverage["gpus_expected"], len(models)
    if set(counts) != {requested.gpus}:
        seen, expected, named = counts
        numbers = f"{seen} of {expected} GPUs seen and the models of {named} named, requested were {requested.gpus}"
        yield Objection(INCOMPLETE, numbers)
    plan = Plan(requested.device, requested.gpus, requested.level)
    refused = limit_problems(requested.limits, models)
    for problem in refused.values():
        yield Objection(INCOMPLETE, problem)
    usable = {key: value for key, value in requested.limits.items() if key not in refused}
    limits = Limits(models if requested.device == "cuda" else (), usable)
    yield from _other_models(report, models)
    for check in report["checks"]:
        if check["name"] not in registry.node_checks() and check["verdict"] in (PASS, SKIP):
            words = "no check of this name can pass: a node reports others than those of the level only with a problem"
            yield Objection(INCOMPLETE, words, check["name"])
    for registered in _requested_checks(requested):
        found = [check for check in report["checks"] if check["name"] == registered.name]
        if not found:
            yield Objection(INCOMPLETE, "the report lacks this requested check", registered.name)
        for check in found:
            yield from _judge_again(registered, check, limits, plan)


def world_objections(report: dict, requested: Requested | None) -> Iterator[Objection]:
    """Everything that a report of scope "world" lacks or that its numbers contradict.

    Nobody requests its checks, which ddp-tests runs on their own; those that it holds must prove their verdict.
    """
    size, nodes, device = report["world"]["size"], report["world"]["nodes"], report["device"]
    wanted = (requested.device, requested.inject) if requested else (device, "")
    for what, found, expected in zip(("device", "injected fault"), (device, report["injected"]), wanted, strict=True):
        if found != expected:
            yield Objection(INCOMPLETE, f"the {what} of the report is {found!r:.80}, requested was {expected!r}")
    ranks = [rank for node in nodes for rank in node["ranks"]]
    if len(ranks) != size or set(ranks) != set(range(size)):
        yield Objection(INCOMPLETE, f"the ranks of its nodes are not the {size} ranks of its world, each once")
    models, gpus = report["facts"].get("gpu_models"), size if device == "cuda" else 0
    models = tuple(map(str, models)) if isinstance(models, list) else ()
    if len(models) != gpus:
        yield Objection(INCOMPLETE, f"the models of {len(models)} GPUs are named, its ranks have {gpus}")
    limits, plan = Limits(models), Plan(device, gpus, report["level"])
    known = registry.world_checks()
    for check in report["checks"]:
        if registered := known.get(check["name"]):
            registered = dataclasses.replace(registered, spec=registered.spec.for_nodes(len(nodes)))
            yield from _judge_again(registered, check, limits, plan)
        elif check["verdict"] == PASS:
            yield Objection(INCOMPLETE, "this check across nodes is not known", check["name"])


def _other_models(report: dict, models: tuple[str, ...]) -> Iterator[Objection]:
    """GPUs that are judged by the figures of another model than the one that the driver names."""
    found = [check["facts"].get("gpus") for check in report["checks"] if check["name"] == "environment"]
    for gpus in (each for each in found if isinstance(each, list)):
        names = {
            str(gpu.get("device")): str(gpu.get("name", ""))
            for gpu in gpus
            if isinstance(gpu, dict) and not gpu.get("mig")
        }
        for index, model in enumerate(models):
            name = names.get(f"cuda:{index}", "")
            if name and gpu_specs.entry(name) != gpu_specs.entry(model):
                words = f"cuda:{index}: torch names it {model:.80}, the driver {name:.80}"
                yield Objection(INCOMPLETE, words, "environment")


def _requested_checks(requested: Requested) -> list[Registered]:
    checks = registry.node_checks().values()
    at_level = [check for check in checks if requested.level in check.spec.seconds]
    return [check for check in at_level if not requested.checks or check.name in requested.checks]


def _judge_again(registered: Registered, check: dict, limits: Limits, plan: Plan) -> Iterator[Objection]:
    """Problems that are worse than the verdict of the check."""
    evidence = _evidence(registered, check, limits, plan)
    if registered.problems:
        try:
            registered.problems(evidence, plan)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
            words = "one is missing or of the wrong kind; was the report changed, or is its worker of another version?"
            evidence.not_measured.append(f"its facts are damaged: {words}")
    ranks = check["facts"].get("ranks")
    if registered.spec.process == WORLD and plan.device == "cuda" and check["verdict"] != SKIP and ranks != plan.gpus:
        evidence.not_measured.append(f"{ranks} ranks ran it, not one for each of {plan.gpus} GPUs")
    again = judge(registered.name, registered.spec, evidence, limits, plan)
    for number, judged in zip(check["measurements"], again.measurements, strict=True):
        if number["name"] in registered.spec.measures:  # what readers see is what it was judged by
            number |= {field: getattr(judged, field) for field in JUDGEMENT}
    if check["verdict"] == SKIP and again.verdict == SKIP:
        return
    if check["verdict"] == SKIP:
        yield Objection(INCOMPLETE, "skipped, although this check applies", registered.name)
        return
    yield from _claims_less(registered, check, limits)
    for problem in again.problems:
        if WORST_FIRST.index(problem.verdict) < WORST_FIRST.index(check["verdict"]):
            yield Objection(problem.verdict, problem.reason, registered.name)


def _claims_less(registered: Registered, check: dict, limits: Limits) -> Iterator[Objection]:
    """Ceilings far below what the model can do: the limit is a share of them."""
    least: dict[str, tuple[float, str]] = {}
    for number in check["measurements"]:
        measure = registered.spec.measures.get(number["name"])
        figure = RULES.get(measure.limit or "", {}).get("ceiling", {}).get("figure") if measure else None
        known = limits.figures(figure, number["device"]).get("specification") if figure else None
        if known and number["ceiling"] and number["ceiling"] < CLAIM * known:
            words = f"claims that its links can do {number['ceiling']:.3g} {number['unit']}, but {known:g} is known"
            least[number["name"]] = min(least.get(number["name"], (known, "")), (number["ceiling"], words))
    for name, (_, words) in least.items():
        yield Objection(WARN, f"{name}: the node {words} of the model", registered.name)


def _evidence(registered: Registered, check: dict, limits: Limits, plan: Plan) -> Evidence:
    """The evidence of a check in a report."""
    measures, facts = registered.spec.measures, check["facts"]
    numbers = check["measurements"]
    absent = facts.get("inapplicable")
    absent = absent if isinstance(absent, dict) else {}
    ceilings = {}  # that the node derived from what is installed
    for number in numbers:
        measure = measures.get(number["name"])
        if measure and number["ceiling"] and "derived" in RULES.get(measure.limit or "", {}):
            ceilings.setdefault(number["name"], (number["ceiling"], "what the node has installed"))
    return Evidence(
        [
            Measurement(n["name"], float("nan") if n["value"] is None else n["value"], n["unit"], n["device"])
            for n in numbers
        ],
        {key: value for key, value in facts.items() if key != "inapplicable"},
        hashes=dict(check["hashes"]),
        inapplicable={
            name: str(reason)
            for name, reason in absent.items()
            if name in measures and (check["verdict"] == FAIL or _may_be_absent(name, measures[name], limits, plan))
        },
        ceilings=ceilings,
    )


def _may_be_absent(name: str, measure: Measure, limits: Limits, plan: Plan) -> bool:
    """Whether hardware as requested can lack a number. A number that the table has for a model is never absent."""
    if plan.gpus == 0 or (plan.gpus == 1 and measure.each != "device"):
        return True
    return measure.optional and not any(limits.figures(measure.limit or name, f"cuda:{i}") for i in range(plan.gpus))
