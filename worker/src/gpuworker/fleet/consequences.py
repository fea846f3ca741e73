"""Consequences: findings that another part of the node causes, and that are listed with it.

All GPUs of a node train together, so that one slow GPU makes the numbers of all of them slow;
collectives are as slow as the worst link; a GPU that is lost takes the numbers of whole checks with
it. Without a cause such findings are about the parts that they name, and slow training is about all
GPUs at once.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from gpuworker.fleet.part import Parts, several
from gpuworker.judgement.kinds import KINDS, SLOWER
from gpuworker.judgement.report import FAIL, INCOMPLETE, WARN, WORST_FIRST

# of the training speed of the others: a GPU below it is slower than what it waits for
OWN_SHARE = 0.9


def _explains(what: str) -> Callable[[object], bool]:
    return lambda finding: what in KINDS[finding.kind].explains


slows, breaks, spoils = map(_explains, ("slow", "broken", "wrong"))


@dataclass(frozen=True, eq=False)
class Rule:
    """Findings that may be consequences, and their causes."""

    words: str  # why they are
    applies: Callable[[object], bool]
    caused_by: Callable[[object], bool]
    verdicts: tuple[str, ...] = (FAIL, WARN)  # of a cause
    of_node: bool = True  # only findings that name no device
    across: bool = False  # also those of checks across nodes
    as_bad: bool = False  # a cause is at least as bad as the consequence
    prefer: str = ""  # the check whose findings are the likeliest cause


def _slow(check: str, *measures: str) -> Callable[[object], bool]:
    return lambda f: (
        f.check == check and f.kind in SLOWER and (not measures or f.measure in measures)
    )


def _kinds(*kinds: str, check: str = "") -> Callable[[object], bool]:
    return lambda f: f.kind in kinds and (not check or f.check == check)


TRAINING = Rule(
    "all GPUs of the node train together, at the speed of the slowest",
    _slow("training", "tokens_per_s", "mfu"), slows, of_node=False,
)  # fmt: skip
MISSING = Rule(
    "not measured for this reason",
    _kinds("missing", "unlisted"),
    breaks,
    (FAIL, INCOMPLETE),
    of_node=False,
)
STRAGGLERS = ("slowest_compute", "latest_arrival")
# In this order: later ones may have earlier ones as their cause.
RULES = (
    Rule("it is one of those that torch does not see", _kinds("gpus-missing"),
         _kinds("gpu-lost", "gpus-missing"), (FAIL,)),
    Rule("collectives are as fast as the slowest GPU or link", _slow("collectives"), slows, as_bad=True,
         prefer="links"),
    Rule("gradients are exchanged at the speed of the slowest GPU or link", _slow("training", "weak_scaling"), slows,
         prefer="links"),
    Rule("all other ranks wait for it",
         lambda f: f.check == "stragglers" and f.measure in STRAGGLERS and slows(f), slows, prefer="stragglers"),
    TRAINING,
    Rule("wrong data spread to all ranks", _kinds("wrong-elements"), spoils, (FAIL,), of_node=False),
    Rule("a wrong gradient spreads to all ranks",
         lambda f: (f.kind in ("shared-gradient", "diverged") and f.check == "correctness")
         or (f.measure == "gradient_error" and f.kind != "missing"), spoils, (FAIL,), prefer="correctness"),
    Rule("traffic between nodes passes this port", _kinds("bad-node"),
         _kinds("port-down", "port-missing", "port-slow", "port-errors"), across=True),
    Rule("the check could not run",
         _kinds("cuda-error", "cuda-busy", "cuda-reset", "check-failed", "not-arrived", "not-run", "driver-hangs"),
         lambda f: breaks(f) and f.check in ("environment", "xids", ""), (FAIL,), of_node=False),
    MISSING,
)  # fmt: skip


class Candidate(NamedTuple):
    """A finding that may be a consequence, and the device that it names."""

    device: str
    finding: object


def rule_of(device: str, finding) -> Rule | None:
    """By which rule a finding is a consequence if it has a cause."""
    for rule in RULES:
        of_node = not device and (rule.across or finding.found_by != "world")
        if (of_node or not rule.of_node) and rule.applies(finding):
            return rule
    return None


def assign(parts: Parts, candidates: dict[Rule, list[Candidate]], gpus: int) -> None:
    """List each consequence with the part that causes it; those without a cause with the part
    that they name.
    """
    for rule in RULES:
        found = candidates.get(rule, [])
        if not found:
            continue
        if rule is TRAINING and not _is_shared(found, gpus):
            _restore(parts, found)
            continue
        part = (_slowest(found) if rule is TRAINING else "") or _cause(parts, rule, found)
        if part is None and rule is TRAINING:
            _restore(
                parts,
                [
                    Candidate(several(len({each.device for each in found}), gpus), f)
                    for _, f in found
                ],
            )
        elif part is None:
            _restore(parts, _without_errors(parts, found) if rule is MISSING else found)
        else:
            own = [each for each in found if each.device == part and not parts[part].findings]
            _restore(parts, own)
            parts[part].consequences += [
                (rule.words, each.finding) for each in found if each not in own
            ]


def _restore(parts: Parts, found: Iterable[Candidate]) -> None:
    for device, finding in found:
        parts[device].findings.append(finding)


def _cause(parts: Parts, rule: Rule, found: list[Candidate]) -> str | None:
    """The part with the likeliest cause: the worst, and a part rather than the whole node."""
    least = min(WORST_FIRST.index(finding.verdict) for _, finding in found)
    causes = {
        name: (
            not any(f.check == rule.prefer for f in own),
            min(WORST_FIRST.index(f.verdict) for f in own),
            -len(own),
        )
        for name, part in parts.items()
        if (own := [f for f in part.findings if f.verdict in rule.verdicts and rule.caused_by(f)])
    }
    if rule.as_bad:
        causes = {name: key for name, key in causes.items() if key[1] <= least}
    whole = causes.pop("", None)
    if causes:
        return min(causes, key=causes.__getitem__)
    # what names no device is about the node anyway
    return None if whole is None or rule.of_node else ""


def _without_errors(parts: Parts, found: list[Candidate]) -> list[Candidate]:
    """Numbers that are missing without an error of their check; the others are listed with the
    part that had it.
    """
    errors = {
        f.check: name
        for name, part in parts.items()
        for f in part.findings
        if f.verdict == INCOMPLETE
    }
    for _, finding in (each for each in found if each.finding.check in errors):
        parts[errors[finding.check]].consequences.append((MISSING.words, finding))
    return [each for each in found if each.finding.check not in errors]


def _is_shared(found: list[Candidate], gpus: int) -> bool:
    """Whether most GPUs train slowly: one of them makes the others slow, or all have one cause."""
    devices = {device for device, _ in found}
    return gpus > 1 and 2 * len(devices) > gpus


def _slowest(found: list[Candidate]) -> str:
    """The GPU that trains clearly slower than the others, as a rank that only waits does not; ""
    if all are alike.
    """
    speeds: dict[str, dict[str, float]] = defaultdict(dict)
    for device, finding in found:
        if "value" in finding.numbers:
            speeds[finding.measure][device] = finding.numbers["value"]
    of_devices = max(speeds.values(), key=len, default={})
    worst = min(of_devices, key=of_devices.__getitem__, default="")
    others = [speed for device, speed in of_devices.items() if device != worst]
    return worst if others and of_devices[worst] < OWN_SHARE * statistics.median(others) else ""
