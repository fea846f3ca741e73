"""Consequences: findings that another part of the node causes, and that are listed with it.

All GPUs of a node train together, so that one slow GPU makes the numbers of all of them slow; collectives are as slow
as the worst link; a GPU that is lost takes the numbers of whole checks with it. Without a cause such findings are about
the parts that they name, and slow training is about all GPUs at once.
"""

from __future__ import annotations

import contextlib
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from gpuworker.accept.report import FAIL, INCOMPLETE, WARN, WORST_FIRST
from gpuworker.fleet.acts import SLOW
from gpuworker.fleet.lost_gpu import FEWER
from gpuworker.fleet.part import Parts, several

# What makes a GPU, a link or a node slow, in words of the findings about it.
SLOWING = (
    rf"{SLOW.pattern}|stalls: |is late: |one rank (is late|takes)|slowdown|thermal|°C|power (is capped|limit|brake)|"
    r"NVLink errors|NVLinks|PCIe (ran|is|can|link|generation|replays during)|application clocks|highest clock|"
    r"another program|MPS shares|Xid \d+|of its fabric|fabric manager|uncorrectable"
)
BREAKING = rf"driver has lost it|{FEWER.pattern}|Xid \d+|the driver demands|uncorrectable|not yet (remapped|retired)"
WRONG = r"wrong words|words differ after|arrived wrong|products are wrong|memory at byte|wrong values|other bits than"
UNKNOWN = "does not report"  # explains nothing
OWN_SHARE = 0.9  # of the training speed of the others: a GPU below it is slower than what it waits for


class Kind(NamedTuple):
    """Findings that may be consequences, and the words of their causes."""

    words: str  # why they are
    checks: tuple[str, ...]  # none: any
    pattern: str
    cause: str
    verdicts: tuple[str, ...] = (FAIL, WARN)  # of a cause
    of_node: bool = True  # only those that name no device
    as_bad: bool = False  # a cause is at least as bad as the consequence
    prefer: str = ""  # the check whose findings are the likeliest cause


NETWORK = Kind("traffic between nodes passes this port", ("bad_nodes",), r"is bad: ", r"this network port")
TRAINING = Kind(
    "all GPUs of the node train together, at the speed of the slowest", ("training",),
    rf"^(tokens_per_s|mfu) .*({SLOW.pattern})", SLOWING, of_node=False,
)  # fmt: skip
BROKEN = Kind(
    "the check could not run", (),
    r"CUDA error|CUDA cannot be used|BrokenWorldError|did not arrive at|the check ended with|not done after|not run: |"
    r"cannot be killed", BREAKING, (FAIL,), of_node=False,
)  # fmt: skip
MISSING = Kind(
    "not measured for this reason", (),
    r"(^|: )no (fingerprint \w+ \S+|\w+)$|not watched during the load|the driver does not report its links|"
    r"none of the GPUs that the driver lists|ranks ran it|have no hash_group|the driver lists \d+ of|"
    r"the report (lacks|covers)|no check has the verdict", BREAKING, (FAIL, INCOMPLETE), of_node=False,
)  # fmt: skip
# In this order: later ones may have earlier ones as their cause.
KINDS = (
    Kind("it is one of those that torch does not see", (), FEWER.pattern, r"driver has lost it", (FAIL,)),
    Kind("collectives are as fast as the slowest GPU or link", ("collectives",), SLOW.pattern, SLOWING, as_bad=True,
         prefer="links"),
    Kind("gradients are exchanged at the speed of the slowest GPU or link", ("training",),
         rf"^(node: )?weak_scaling .*({SLOW.pattern})", SLOWING, prefer="links"),
    Kind("all other ranks wait for it", ("stragglers",),
         rf"^one rank (is late|takes)|^(node: )?(slowest_compute|latest_arrival) .*({SLOW.pattern})", SLOWING,
         prefer="stragglers"),
    TRAINING,
    Kind("wrong data spread to all ranks", ("collectives",), r"^(?!.*what it sent).*elements are wrong", WRONG, (FAIL,),
         of_node=False),
    Kind("a wrong gradient spreads to all ranks", ("correctness",),
         r"averaged gradient|^(node: )?gradient_error |^no gradient_error: |^a gradient differs|parameters differ",
         rf"its own gradient|{WRONG}", (FAIL,), prefer="correctness"),
    NETWORK, BROKEN, MISSING,
)  # fmt: skip
_PATTERNS = {kind: re.compile(kind.pattern) for kind in KINDS}


class Candidate(NamedTuple):
    """A finding that may be a consequence, and the device that it names."""

    device: str
    finding: object


def kind_of(device: str, finding) -> Kind | None:
    """Of which kind a finding is if it has a cause."""
    for kind, pattern in _PATTERNS.items():
        applies = not kind.of_node or (not device and (finding.found_by != "world" or kind is NETWORK))
        if applies and (not kind.checks or finding.check in kind.checks) and pattern.search(finding.reason):
            return kind
    return None


def assign(parts: Parts, candidates: dict[Kind, list[Candidate]], gpus: int) -> None:
    """List each consequence with the part that causes it; those without a cause with the part that they name."""
    for kind in KINDS:
        found = candidates.get(kind, [])
        if not found:
            continue
        if kind is TRAINING and not _is_shared(found, gpus):
            _restore(parts, found)
            continue
        part = (_slowest(found) if kind is TRAINING else "") or _cause(parts, kind, found)
        if part is None and kind is TRAINING:
            _restore(parts, [Candidate(several(len({each.device for each in found}), gpus), f) for _, f in found])
        elif part is None:
            _restore(parts, _without_errors(parts, found) if kind is MISSING else found)
        else:
            own = [each for each in found if each.device == part and not parts[part].findings]
            _restore(parts, own)
            parts[part].consequences += [(kind.words, each.finding) for each in found if each not in own]


def _restore(parts: Parts, found: Iterable[Candidate]) -> None:
    for device, finding in found:
        parts[device].findings.append(finding)


def _cause(parts: Parts, kind: Kind, found: list[Candidate]) -> str | None:
    """The part with the likeliest cause: the worst, and a part rather than the whole node."""
    reasons, least = re.compile(kind.cause), min(WORST_FIRST.index(finding.verdict) for _, finding in found)
    causes = {
        name: (not any(f.check == kind.prefer for f in own), min(WORST_FIRST.index(f.verdict) for f in own), -len(own))
        for name, part in parts.items()
        if (own := [f for f in part.findings if f.verdict in kind.verdicts and _explains(reasons, f)])
    }
    if kind.as_bad:
        causes = {name: key for name, key in causes.items() if key[1] <= least}
    whole = causes.pop("", None)
    if causes:
        return min(causes, key=causes.__getitem__)
    return None if whole is None or kind.of_node else ""  # what names no device is about the node anyway


def _explains(reasons: re.Pattern[str], finding) -> bool:
    return finding.check != "storage" and UNKNOWN not in finding.reason and bool(reasons.search(finding.reason))


def _without_errors(parts: Parts, found: list[Candidate]) -> list[Candidate]:
    """Numbers that are missing without an error of their check; the others are listed with the part that had it."""
    errors = {f.check: name for name, part in parts.items() for f in part.findings if f.verdict == INCOMPLETE}
    for _, finding in (each for each in found if each.finding.check in errors):
        parts[errors[finding.check]].consequences.append((MISSING.words, finding))
    return [each for each in found if each.finding.check not in errors]


def _is_shared(found: list[Candidate], gpus: int) -> bool:
    """Whether most GPUs train slowly: one of them makes the others slow, or all have one cause."""
    devices = {device for device, _ in found}
    return gpus > 1 and 2 * len(devices) > gpus


def _slowest(found: list[Candidate]) -> str:
    """The GPU that trains clearly slower than the others, as a rank that only waits does not; "" if all are alike."""
    speeds: dict[str, dict[str, float]] = defaultdict(dict)
    for device, finding in found:
        name, value = finding.reason.split()[:2]
        with contextlib.suppress(ValueError):
            speeds[name][device] = float(value)
    of_devices = max(speeds.values(), key=len, default={})
    worst = min(of_devices, key=of_devices.__getitem__, default="")
    others = [speed for device, speed in of_devices.items() if device != worst]
    return worst if others and of_devices[worst] < OWN_SHARE * statistics.median(others) else ""
