"""Verdict of a check: its evidence against limits and against the numbers that its SPEC promises."""

from __future__ import annotations

import math

from gpuworker.accept.check_spec import Evidence, Measure, Plan, Spec
from gpuworker.accept.limits import NO_FIGURE, Limits
from gpuworker.accept.report import FAIL, INCOMPLETE, PASS, SKIP, WARN, Check, Measurement, Problem

# Clocks of a GPU may boost beyond those of its data sheet, by less than this. A faster result is a measurement error.
CEILING_TOLERANCE = 1.15
MAX_SAMPLES = 200  # per name: samples are for plots, and the report is written to the log


def judge(name: str, spec: Spec, evidence: Evidence, limits: Limits, plan: Plan) -> Check:
    """The verdict of one check; `limits`: those of the GPUs under test."""
    texts = {FAIL: list(evidence.failures), WARN: list(evidence.warnings), PASS: []}
    texts[INCOMPLETE] = [*evidence.not_measured, *_promised_and_missing(spec, evidence, plan)]
    without_figure: list[str] = []
    for measurement in evidence.measurements:
        measure = spec.measures.get(measurement.name)
        where = f"{measurement.device or 'node'}: {measurement.name}"
        if measure is None:
            texts[INCOMPLETE].append(f"{where} is not declared in this check's SPEC")
        elif measurement.unit != measure.unit:
            texts[INCOMPLETE].append(f"{where} has the unit {measurement.unit!r:.40}, declared is {measure.unit!r}")
        elif problem := impossible(measurement.value, measurement.unit, measure.better, measure.least, measure.most):
            texts[INCOMPLETE].append(f"{where} {problem}")
        else:
            derived = evidence.ceilings.get(measurement.name)
            _compare(measurement, measure, limits, derived)
            verdict, reason = _verdict(measurement, measure, hard_ceiling=derived is None)
            texts[verdict].append(f"{where} {reason}")
            if measurement.limit_source.startswith(NO_FIGURE):
                without_figure.append(f"{measurement.name}: {measurement.limit_source.removeprefix('none: ')}")
    texts[WARN] += dict.fromkeys(without_figure)
    problems = [Problem(verdict, text) for verdict in (FAIL, INCOMPLETE, WARN) for text in texts[verdict]]
    verdict, reason = problems[0].verdict if problems else PASS, "; ".join(problem.reason for problem in problems)
    if verdict == PASS and spec.measures and set(spec.measures) <= set(evidence.inapplicable):
        verdict, reason = SKIP, "; ".join(dict.fromkeys(evidence.inapplicable.values()))
    facts = dict(evidence.facts)
    if evidence.inapplicable:
        facts["inapplicable"] = evidence.inapplicable
    samples = {key: values[:: -(-len(values) // MAX_SAMPLES) or 1] for key, values in evidence.samples.items()}
    return Check(name, verdict, reason, evidence.measurements, facts, evidence.hashes, samples, problems=problems)


def impossible(value: float, unit: str, better: str, least: float = 0.0, most: float = math.inf) -> str:
    """Why a number cannot have been measured; "" if it can."""
    if not math.isfinite(value):
        return f"is not finite ({value})"
    if value < 0 or (value == 0 and better == "higher"):
        return f"is {value:g} {unit}: nothing was measured"
    return "" if least <= value <= most else f"is {value:g} {unit}, which cannot be"


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
        elif measure.each == "pair":
            missing += [f"{pair}: no {name}" for pair in _pairs(plan.devices) if pair not in found.get(name, ())]
        elif name not in found:
            missing.append(f"no {name}")
    missing += _missing_fingerprints(spec, evidence, plan) if spec.fingerprints else []
    if not (spec.measures or evidence.facts or evidence.hashes):
        missing.append("the check returned no evidence")
    return missing


def _pairs(devices: list[str]) -> list[str]:
    return [f"{a}→{b}" for a in devices for b in devices if a != b]


def _missing_fingerprints(spec: Spec, evidence: Evidence, plan: Plan) -> list[str]:
    """Fingerprints that the SPEC promises or another device has, and their group, without which none is compared."""
    names = {*spec.fingerprints, *(key.partition(" ")[0] for key in evidence.hashes)}
    wanted = [f"{name} {device}" for device in plan.devices for name in sorted(names)]
    missing = [f"no fingerprint {key}" for key in wanted if not evidence.hashes.get(key)]
    group = evidence.facts.get("hash_group")
    return missing + ["the fingerprints have no hash_group"] * (not group or not isinstance(group, str))


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
