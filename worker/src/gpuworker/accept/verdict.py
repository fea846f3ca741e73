"""Verdict of one check: its evidence against limits and against the numbers that its SPEC
promises.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from dataclasses import dataclass, field

from gpuworker.accept.check_spec import WORLD, Measure, Plan, Registered, Spec
from gpuworker.accept.limits import RULES, Limits
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

# Clocks of a GPU may boost beyond those of its data sheet, by less than this. A faster result is a
# measurement error.
CEILING_TOLERANCE = 1.15
CLAIM = 0.95  # of what a model can do: rates of PCIe and NVLink are rounded


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


def judge_check(check: Registered, evidence: Evidence, limits: Limits, plan: Plan) -> Check:
    """`limits`: those of the GPUs under test."""
    spec = check.spec
    found = dataclasses.replace(evidence, problems=list(evidence.problems), ceilings={})
    nothing = not (evidence.measurements or evidence.facts or evidence.hashes)
    applies = set(spec.measures)
    if not (nothing and evidence.has(FAIL, INCOMPLETE)):  # else why there is nothing says it all
        _add_problems_of_facts(check, found, plan)
        applies -= _absent(spec, found, limits, plan)
        _add_missing(spec, found, applies, plan)
        _add_low_claims(spec, found, evidence, limits)
    numbers, without_figure = [], {}
    for measurement in evidence.measurements:
        name, measure = measurement.name, spec.measures.get(measurement.name)
        seen = (name, measurement.value, measurement.unit, measurement.device)
        number = Number(*map(_shared, seen))
        numbers.append(number)
        verdict, (kind, reason) = INCOMPLETE, _refusal(number, measure)
        if not kind:
            derived = _ceiling(measure, evidence.ceilings.get(name), number.device, limits)
            if no_figure := _set_limits(number, measure, limits, derived):
                without_figure[f"{name}: {no_figure}"] = None
            verdict, kind, reason = _verdict(number, measure, derived is not None)
        number.refused = kind in ("contradiction", "impossible")
        if verdict != PASS:
            parts = [number.device] if number.device else []
            words = f"{number.device or 'node'}: {name} {reason}"
            numbers_of = {"measure": name}
            if math.isfinite(number.value):  # JSON has no other numbers
                numbers_of["value"] = number.value
            found.problems.append(Problem(verdict, kind, words, parts, numbers_of))
    for words in without_figure:
        found.warn("no-figure", words)
    judged = of_problems(evidence.name, found)
    if judged.verdict == PASS and spec.measures and not applies:
        judged.verdict = SKIP
        judged.reason = "; ".join(dict.fromkeys(evidence.inapplicable.values()))
    judged.numbers = numbers
    return judged


def of_problems(name: str, evidence: Evidence) -> Check:
    """The check of what was seen beside the measuring, with a verdict of its problems alone."""
    problems = sorted(
        evidence.problems, key=lambda problem: (FAIL, INCOMPLETE, WARN).index(problem.verdict)
    )
    verdict = problems[0].verdict if problems else PASS
    return Check(
        name, verdict, "; ".join(problem.reason for problem in problems), problems=problems
    )


def _refusal(number: Number, measure: Measure | None) -> tuple[str, str]:
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
    return "", ""


def _shared(value: object) -> object:
    """Thousands of reports have the same words."""
    return sys.intern(value) if type(value) is str else value


def _absent(spec: Spec, found: Evidence, limits: Limits, plan: Plan) -> set[str]:
    """The numbers that the evidence calls inapplicable, and that hardware as requested can lack.

    A number that the table has for a model is never absent. Behind a proven fault anything may be.
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
        if name in found.inapplicable and may_be(name, measure)
    }


def _add_problems_of_facts(check: Registered, found: Evidence, plan: Plan) -> None:
    if check.problems:
        seen = len(found.problems)
        kinds = {problem.kind for problem in found.problems}
        try:
            check.problems(found, plan)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
            words = "one is missing or of the wrong kind; was the report changed, or is its worker of another version?"
            if not found.has(INCOMPLETE):
                found.incomplete("contradiction", f"its facts are damaged: {words}")
        # What the numbers show, the measuring has seen, too, and knows the part.
        new = [
            problem
            for problem in found.problems[seen:]
            if problem.parts or problem.kind not in kinds
        ]
        found.problems[seen:] = new
    ranks = found.facts.get("ranks")
    ran = set(check.spec.measures) - set(found.inapplicable)
    if check.spec.process == WORLD and plan.device == "cuda" and ran and ranks != plan.gpus:
        found.incomplete("missing", f"{ranks} ranks ran it, not one for each of {plan.gpus} GPUs")


def _add_missing(spec: Spec, found: Evidence, applies: set[str], plan: Plan) -> None:
    """Add the numbers and fingerprints that the SPEC promises and the evidence lacks."""
    measured: dict[str, set[str]] = {}
    for measurement in found.measurements:
        measured.setdefault(measurement.name, set()).add(measurement.device)
    for name, measure in spec.measures.items():
        if name not in applies:
            continue
        for device in _places(measure, plan):
            if device not in measured.get(name, ()):
                found.incomplete("missing", f"{device}: no {name}", device, measure=name)
        if measure.each == "node" and name not in measured:
            found.incomplete("missing", f"no {name}", measure=name)
    if spec.fingerprints:
        names = {*spec.fingerprints, *(key.partition(" ")[0] for key in found.hashes)}
        for device in plan.devices:
            for name in sorted(names):
                if not found.hashes.get(f"{name} {device}"):
                    found.incomplete(
                        "missing", f"{device}: no fingerprint {name}", device, measure=name
                    )
        group = found.facts.get("hash_group")
        if not group or not isinstance(group, dict) or set(plan.devices) - set(group):
            found.incomplete("missing", "the fingerprints have no hash_group for every device")
    if not (spec.measures or found.facts or found.hashes):
        found.incomplete("missing", "the check returned no evidence")


def _places(measure: Measure, plan: Plan) -> list[str]:
    """Where the number must have been measured."""
    if measure.each == "pair":
        return [f"{a}→{b}" for a in plan.devices for b in plan.devices if a != b]
    return plan.devices if measure.each == "device" else []


def _known_ceiling(measure: Measure, device: str, limits: Limits) -> float:
    """What the device's model can do by its data sheet, of a number whose ceiling the node
    derives; 0 if unknown.
    """
    figure = RULES.get(measure.limit or "", {}).get("ceiling", {}).get("figure", "")
    return limits.figures(figure, device).get("specification", 0)


def _ceiling(
    measure: Measure, claimed: tuple[float, str] | None, device: str, limits: Limits
) -> tuple[float, str] | None:
    """The ceiling that the node derived from what is installed, if it may set the limit."""
    rule = RULES.get(measure.limit or "", {})
    if not claimed or "derived" not in rule:
        return None
    # NVLink is what the model has; a slot may be slow.
    nvlink = rule.get("ceiling", {}).get("figure") == "nvlink_oneway"
    return (
        None if nvlink and claimed[0] < CLAIM * _known_ceiling(measure, device, limits) else claimed
    )


def _add_low_claims(spec: Spec, found: Evidence, evidence: Evidence, limits: Limits) -> None:
    """Ceilings far below what the model can do: the limit is a share of them."""
    for name, (claimed, _) in evidence.ceilings.items():
        devices = {number.device for number in evidence.measurements if number.name == name}
        known = max((_known_ceiling(spec.measures[name], each, limits) for each in devices if name in spec.measures),
                    default=0)  # fmt: skip
        if known and claimed < CLAIM * known:
            words = f"the node claims that its links can do {claimed:.3g} GB/s, but {known:g} is known of the model"
            found.warn("pcie", f"{name}: {words}")


def _set_limits(
    number: Number, measure: Measure, limits: Limits, derived: tuple[float, str] | None
) -> str:
    """Write direction, limit, source and ceiling into the number. Returns why it has no figure,
    or "".
    """
    threshold = limits.threshold(number.name, measure, number.device, derived)
    number.better, number.judged = measure.better, measure.limit is not None
    number.limit, number.warn_limit, number.ceiling = (
        threshold.fail,
        threshold.warn,
        threshold.ceiling,
    )
    number.limit_source = _shared(threshold.source)
    return threshold.no_figure


def _verdict(number: Number, measure: Measure, derived: bool) -> tuple[str, str, str]:
    """Verdict, kind and words."""
    value, unit = number.value, number.unit
    sign = 1 if measure.better == "higher" else -1
    side = "below" if sign > 0 else "above"
    tolerance = measure.ceiling_tolerance if derived else CEILING_TOLERANCE
    if number.ceiling and value > tolerance * number.ceiling:
        most = f"the hardware maximum ({number.ceiling:g})"
        return (
            INCOMPLETE,
            "impossible",
            f"{value:.4g} {unit} exceeds {most}: the timer is probably wrong",
        )
    if number.limit is not None and sign * value < sign * number.limit:
        source = f"{number.limit:.4g} ({number.limit_source})"
        return FAIL, "limit", f"{value:.4g} {unit} is {side} the limit of {source}"
    if number.warn_limit is not None and sign * value < sign * number.warn_limit:
        source = f"{number.warn_limit:.4g} ({number.limit_source})"
        return WARN, "limit", f"{value:.4g} {unit} is {side} the warning limit of {source}"
    return PASS, "", ""
