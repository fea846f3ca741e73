"""Verdict of one check: its evidence against limits and against the numbers that its SPEC
promises.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from dataclasses import dataclass, field

from gpuworker.judgement.check_spec import Measure, Plan, Spec
from gpuworker.judgement.limits import Limits, Threshold
from gpuworker.judgement.report import (
    FAIL,
    INCOMPLETE,
    PASS,
    SKIP,
    WARN,
    Evidence,
    Measurement,
    Problem,
)


@dataclass(slots=True)
class Number(Measurement):
    """A measurement with its limit. The check fails on the wrong side of `limit` and warns on that
    of `warn_limit`.

    `ceiling` is the most that the hardware can do. `better` is "higher", "lower", or "" without a
    direction. `judged`: the number has a limit key, so an outlier among many devices is a finding.
    """

    limit: float | None = None
    warn_limit: float | None = None
    limit_source: str = ""
    ceiling: float | None = None
    better: str = ""
    judged: bool = False
    refused: bool = False  # it cannot be: no other number is compared with it


@dataclass
class Check:
    """Verdict of one check. `reason` explains a verdict other than PASS; `problems` are its
    parts.
    """

    name: str
    verdict: str
    reason: str = ""
    numbers: list[Number] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def judge_check(check: Spec, evidence: Evidence, limits: Limits, plan: Plan) -> Check:
    """`limits`: those of the GPUs under test."""
    found = dataclasses.replace(evidence, problems=list(evidence.problems))
    nothing = not (evidence.measurements or evidence.facts or evidence.hashes)
    applies = set(check.measures)
    if not (nothing and evidence.has(FAIL, INCOMPLETE)):  # else why there is nothing says it all
        possible = _possible(found, check, limits)
        _add_problems_of_facts(check, possible, plan)
        found.ceilings = possible.ceilings
        applies -= _absent(check, found, limits, plan)
        _add_missing(check, found, applies, plan)
    explained = _explained(found)
    numbers, without_figure = [], {}
    for measurement in evidence.measurements:
        name, measure = measurement.name, check.measures.get(measurement.name)
        number = Number(name, measurement.value, measurement.unit, measurement.device)
        numbers.append(number)
        threshold = _threshold(number, measure, found, limits)
        verdict, kind, reason = INCOMPLETE, *_refusal(number, measure, threshold)
        if not kind:
            number.limit, number.warn_limit = threshold.fail, threshold.warn
            number.ceiling, number.limit_source = threshold.ceiling, sys.intern(threshold.source)
            number.better, number.judged = measure.better, measure.limit is not None
            if threshold.no_figure:
                without_figure[f"{name}: {threshold.no_figure}"] = None
            verdict, kind, reason = _verdict(number, measure)
        number.refused = verdict == INCOMPLETE
        if verdict != PASS and not (verdict == FAIL and name in explained):
            numbers_of = {"measure": name}
            if math.isfinite(number.value):  # JSON has no other numbers
                numbers_of["value"] = number.value
            words = f"{number.device or 'node'}: {name} {reason}"
            found.add(verdict, kind, words, *filter(None, [number.device]), **numbers_of)
    for words in without_figure:
        found.warn("no-figure", words)
    judged = of_problems(evidence.name, found)
    if judged.verdict == PASS and check.measures and not applies:
        judged.verdict = SKIP
        judged.reason = "; ".join(dict.fromkeys(evidence.inapplicable.values()))
    judged.numbers = numbers
    return judged


def of_problems(name: str, evidence: Evidence) -> Check:
    """The check of what was seen beside the measuring, with a verdict of its problems alone."""
    worst = (FAIL, INCOMPLETE, WARN)
    problems = sorted(evidence.problems, key=lambda problem: worst.index(problem.verdict))
    verdict = problems[0].verdict if problems else PASS
    reason = "; ".join(problem.reason for problem in problems)
    return Check(name, verdict, reason, problems=problems)


def _explained(found: Evidence) -> set[object]:
    """Numbers of a node of which the measuring knows the part that has failed."""
    failed = (problem for problem in found.problems if problem.verdict == FAIL)
    return {problem.numbers.get("measure") for problem in failed if problem.parts}


def _threshold(
    number: Measurement, measure: Measure | None, found: Evidence, limits: Limits
) -> Threshold:
    claimed = found.ceilings.get(number.name)
    return (
        limits.threshold(number.name, measure, number.device, claimed) if measure else Threshold()
    )


def _possible(found: Evidence, spec: Spec, limits: Limits) -> Evidence:
    """The evidence without numbers that cannot be, with which no other is compared."""
    possible = []
    for number in found.measurements:
        measure = spec.measures.get(number.name)
        if not _refusal(number, measure, _threshold(number, measure, found, limits))[0]:
            possible.append(number)
    return dataclasses.replace(found, measurements=possible)  # with the same list of problems


def _refusal(number: Measurement, measure: Measure | None, threshold: Threshold) -> tuple[str, str]:
    """Kind and words of why a number cannot have been measured; empty if it can."""
    if measure is None:
        return "contradiction", "is not declared in this check's SPEC"
    if number.unit != measure.unit:
        words = f"has the unit {number.unit!r:.40}, declared is {measure.unit!r}"
        return "contradiction", words
    value, unit = number.value, number.unit
    if not math.isfinite(value):
        return "impossible", f"is not finite ({value})"
    if value < 0 or (value == 0 and measure.better == "higher"):
        return "impossible", f"is {value:g} {unit}: nothing was measured"
    if not measure.least <= value <= measure.most:
        return "impossible", f"is {value:g} {unit}, which cannot be"
    if threshold.ceiling and value > measure.ceiling_tolerance * threshold.ceiling:
        words = f"{value:.4g} {unit} exceeds the hardware maximum ({threshold.ceiling:g})"
        return "impossible", f"{words}: the timer is probably wrong"
    return "", ""


def _absent(spec: Spec, found: Evidence, limits: Limits, plan: Plan) -> set[str]:
    """The numbers that the evidence calls inapplicable, and that hardware as requested can lack.

    A number that the table has for a model is never absent. Behind a proven fault anything may be,
    and a number of the node is.
    """

    def may_be(name: str, measure: Measure) -> bool:
        if found.has(FAIL) or plan.gpus == 0 or (plan.gpus == 1 and measure.each != "device"):
            return True
        key = measure.limit or name
        return measure.optional and not any(
            limits.figures(key, f"cuda:{i}") for i in range(plan.gpus)
        )

    return {
        name
        for name, measure in spec.measures.items()
        if (found.has(FAIL) and measure.each == "node")
        or (name in found.inapplicable and may_be(name, measure))
    }


def _add_problems_of_facts(check: Spec, found: Evidence, plan: Plan) -> None:
    if check.problems:
        try:
            check.problems(found, plan)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
            words = (
                "one is missing or of the wrong kind; was the report changed, or is its worker of "
                "another version?"
            )
            if not found.has(INCOMPLETE):
                found.incomplete("contradiction", f"its facts are damaged: {words}")
    ranks = found.facts.get("ranks")
    ran = set(check.measures) - set(found.inapplicable)
    if check.ranks and plan.device == "cuda" and ran and ranks != plan.gpus:
        found.incomplete("missing", f"{ranks} ranks ran it, not one for each of {plan.gpus} GPUs")


def _add_missing(spec: Spec, found: Evidence, applies: set[str], plan: Plan) -> None:
    """Add the numbers and fingerprints that the SPEC promises and the evidence lacks."""
    measured = {(measurement.name, measurement.device) for measurement in found.measurements}
    names = {name for name, _ in measured}
    missing = [
        (name, device)
        for name, measure in spec.measures.items()
        if name in applies
        for device in _places(measure, plan)
        if (name, device) not in measured and (device or name not in names)
    ]
    if spec.fingerprints:
        known = {*spec.fingerprints, *(key.partition(" ")[0] for key in found.hashes)}
        missing += [
            (name, device)
            for device in plan.devices
            for name in sorted(known)
            if not found.hashes.get(f"{name} {device}")
        ]
        group = found.facts.get("hash_group")
        if not isinstance(group, dict) or set(plan.devices) - set(group):
            found.incomplete("missing", "the fingerprints have no hash_group for every device")
    for name, device in missing:
        words = f"{device}: no {name}" if device else f"no {name}"
        found.incomplete("missing", words, *filter(None, [device]), measure=name)
    if not (spec.measures or found.facts or found.hashes):
        found.incomplete("missing", "the check returned no evidence")


def _places(measure: Measure, plan: Plan) -> list[str]:
    """Where the number must have been measured."""
    if measure.each == "pair":
        return [f"{a}→{b}" for a in plan.devices for b in plan.devices if a != b]
    return plan.devices if measure.each == "device" else [""]


def _verdict(number: Number, measure: Measure) -> tuple[str, str, str]:
    """Verdict, kind and words."""
    value, unit = number.value, number.unit
    sign = 1 if measure.better == "higher" else -1
    side = "below" if sign > 0 else "above"
    for verdict, limit, name in (
        (FAIL, number.limit, "limit"),
        (WARN, number.warn_limit, "warning limit"),
    ):
        if limit is not None and sign * value < sign * limit:
            source = f"{limit:.4g} ({number.limit_source})"
            return verdict, "limit", f"{value:.4g} {unit} is {side} the {name} of {source}"
    return PASS, "", ""
