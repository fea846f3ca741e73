"""From evidence to a verdict: numbers against limits, promises against what came. No measuring here."""

from __future__ import annotations

import math

from gpuworker.accept.limits import Limits
from gpuworker.accept.registry import Evidence, Measure, Plan, Spec
from gpuworker.accept.report import FAIL, INCOMPLETE, PASS, SKIP, WARN, Check, Measurement, Problem

# Clocks of a GPU may boost beyond those of its data sheet, by less than this. What is faster still was not measured.
IMPOSSIBLE = 1.15
MOST_SAMPLES = 200  # of one name: they are for plots, and the report travels in the log


def judge(name: str, spec: Spec, evidence: Evidence, limits: Limits, plan: Plan) -> Check:
    """The verdict of one check; `limits` are those of the GPUs that are there."""
    wrong, doubtful = list(evidence.wrong), list(evidence.doubtful)
    missing = [*evidence.missing, *_missing(spec, evidence, plan)]
    for measurement in evidence.measurements:
        measure = spec.measures.get(measurement.name)
        where = f"{measurement.device or 'node'}: {measurement.name}"
        if measure is None:
            missing.append(f"{where} is no declared measure of this check")
        elif not math.isfinite(measurement.value):
            missing.append(f"{where} is no finite number ({measurement.value})")
        else:
            derived = evidence.ceilings.get(measurement.name)
            _compare(measurement, measure, limits, derived)
            verdict, reason = _verdict(measurement, measure, hard_ceiling=derived is None)
            {FAIL: wrong, INCOMPLETE: missing, WARN: doubtful, PASS: []}[verdict].append(f"{where} {reason}")
    reason = "; ".join([*wrong, *missing, *doubtful])
    verdict = FAIL if wrong else INCOMPLETE if missing else WARN if doubtful else PASS
    if verdict == PASS and spec.measures and set(spec.measures) <= set(evidence.inapplicable):
        verdict, reason = SKIP, "; ".join(dict.fromkeys(evidence.inapplicable.values()))
    facts = dict(evidence.facts)
    if evidence.inapplicable:
        facts["inapplicable"] = evidence.inapplicable
    samples = {key: values[:: -(-len(values) // MOST_SAMPLES) or 1] for key, values in evidence.samples.items()}
    by_verdict = {FAIL: wrong, INCOMPLETE: missing, WARN: doubtful}
    problems = [Problem(kind, text) for kind, texts in by_verdict.items() for text in texts]
    return Check(name, verdict, reason, evidence.measurements, facts, evidence.hashes, samples, problems=problems)


def _missing(spec: Spec, evidence: Evidence, plan: Plan) -> list[str]:
    """Promised numbers that are not there."""
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
        missing.append("the check found nothing at all")
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
    if hard_ceiling and measurement.ceiling and value > IMPOSSIBLE * measurement.ceiling:
        most = f"the hardware can do ({measurement.ceiling:g})"
        return INCOMPLETE, f"{value:.4g} {unit} is more than {most}: a wrong clock?"
    if measurement.limit is not None and sign * value < sign * measurement.limit:
        return FAIL, f"{value:.4g} {unit} is {side} the limit of {measurement.limit:.4g} ({measurement.limit_source})"
    if measurement.warn_limit is not None and sign * value < sign * measurement.warn_limit:
        source = f"{measurement.warn_limit:.4g} ({measurement.limit_source})"
        return WARN, f"{value:.4g} {unit} is {side} the warning limit of {source}"
    return PASS, ""
