"""Verdict of a check: its evidence against limits and against the numbers that its SPEC promises."""

from __future__ import annotations

import math

from gpuworker.accept.check_spec import Evidence, Measure, Plan, Spec
from gpuworker.accept.limits import Limits
from gpuworker.accept.report import FAIL, INCOMPLETE, PASS, SKIP, WARN, Check, Measurement, Problem

# Clocks of a GPU may boost beyond those of its data sheet, by less than this. A faster result is a measurement error.
CEILING_TOLERANCE = 1.15
MAX_SAMPLES = 200  # per name: samples are for plots, and the report is written to the log


def judge(name: str, spec: Spec, evidence: Evidence, limits: Limits, plan: Plan) -> Check:
    """The verdict of one check; `limits`: those of the GPUs under test."""
    texts = {FAIL: list(evidence.failures), WARN: list(evidence.warnings), PASS: []}
    texts[INCOMPLETE] = [*evidence.not_measured, *_promised_and_missing(spec, evidence, plan)]
    for measurement in evidence.measurements:
        measure = spec.measures.get(measurement.name)
        where = f"{measurement.device or 'node'}: {measurement.name}"
        if measure is None:
            texts[INCOMPLETE].append(f"{where} is not declared in this check's SPEC")
        elif not math.isfinite(measurement.value):
            texts[INCOMPLETE].append(f"{where} is not finite ({measurement.value})")
        else:
            derived = evidence.ceilings.get(measurement.name)
            _compare(measurement, measure, limits, derived)
            verdict, reason = _verdict(measurement, measure, hard_ceiling=derived is None)
            texts[verdict].append(f"{where} {reason}")
    problems = [Problem(verdict, text) for verdict in (FAIL, INCOMPLETE, WARN) for text in texts[verdict]]
    verdict, reason = problems[0].verdict if problems else PASS, "; ".join(problem.reason for problem in problems)
    if verdict == PASS and spec.measures and set(spec.measures) <= set(evidence.inapplicable):
        verdict, reason = SKIP, "; ".join(dict.fromkeys(evidence.inapplicable.values()))
    facts = dict(evidence.facts)
    if evidence.inapplicable:
        facts["inapplicable"] = evidence.inapplicable
    samples = {key: values[:: -(-len(values) // MAX_SAMPLES) or 1] for key, values in evidence.samples.items()}
    return Check(name, verdict, reason, evidence.measurements, facts, evidence.hashes, samples, problems=problems)


def _promised_and_missing(spec: Spec, evidence: Evidence, plan: Plan) -> list[str]:
    """Numbers that the SPEC promises and the evidence lacks."""
    found: dict[str, set[str]] = {}
    for measurement in evidence.measurements:
        found.setdefault(measurement.name, set()).add(measurement.device)
    missing = []
    for name, measure in spec.measures.items():
        if name in evidence.inapplicable:
            continue
        if measure.each == "device":
            missing += [f"{device}: no {name}" for device in plan.devices if device not in found.get(name, ())]
        elif name not in found:
            missing.append(f"no {name}")
    if not (spec.measures or evidence.facts or evidence.hashes):
        missing.append("the check returned no evidence")
    return missing


def _compare(measurement: Measurement, measure: Measure, limits: Limits, derived: tuple[float, str] | None) -> None:
    """Write direction, limit, source, margin and ceiling into the measurement."""
    measurement.better, measurement.judged = measure.better, measure.limit is not None
    threshold = limits.threshold(measurement.name, measure, measurement.device, derived)
    measurement.limit, measurement.warn_limit = threshold.fail, threshold.warn
    measurement.limit_source, measurement.ceiling = threshold.source, threshold.ceiling
    nearest = threshold.warn if threshold.fail is None else threshold.fail
    if nearest:
        ratio = measurement.value / nearest
        measurement.margin = ratio if measure.better == "higher" else (1 / ratio if ratio else math.inf)


def _verdict(measurement: Measurement, measure: Measure, hard_ceiling: bool) -> tuple[str, str]:
    value, unit = measurement.value, measurement.unit
    sign = 1 if measure.better == "higher" else -1
    side = "below" if sign > 0 else "above"
    if hard_ceiling and measurement.ceiling and value > CEILING_TOLERANCE * measurement.ceiling:
        most = f"the hardware maximum ({measurement.ceiling:g})"
        return INCOMPLETE, f"{value:.4g} {unit} exceeds {most}: the timer is probably wrong"
    if measurement.limit is not None and sign * value < sign * measurement.limit:
        return FAIL, f"{value:.4g} {unit} is {side} the limit of {measurement.limit:.4g} ({measurement.limit_source})"
    if measurement.warn_limit is not None and sign * value < sign * measurement.warn_limit:
        source = f"{measurement.warn_limit:.4g} ({measurement.limit_source})"
        return WARN, f"{value:.4g} {unit} is {side} the warning limit of {source}"
    return PASS, ""
