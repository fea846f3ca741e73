"""Parts of a node: its GPUs, links, network ports, what its GPUs share, and the node, each with the
findings about it and with those that it causes elsewhere on the node.

A GPU with a bad NVLink makes every link to and from it slow. Links of a node are therefore counted
per GPU: a GPU with several bad links is the part that all of them are about, and a single bad link
is a part of its own.

All GPUs of a node train together, so that one slow GPU makes the numbers of all of them slow;
collectives are as slow as the worst link; a GPU that is lost takes the numbers of whole checks with
it. Without a cause such findings are about the parts that they name, and slow training is about all
GPUs at once.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuworker.judgement.findings import Finding, Port
from gpuworker.judgement.kinds import KINDS, POWERED, SLOWER, WHY_SLOW, Act, urgency
from gpuworker.judgement.report import FAIL, INCOMPLETE, WARN, WORST_FIRST

ARROW = "→"  # of a link in one direction
BOTH_WAYS = "↔"
COLLECTIVES = "collectives"  # name of the check
FABRIC = "GPU fabric"  # part of a node: what connects its GPUs
# wrong collectives of more of a node's GPUs are the fabric's, not that of each receiver
SHARE_OF_FABRIC = 0.5
SHARE_OF_LINKS = 0.9  # bad links between more pairs of a node's GPUs are of no single GPU
# of the training speed of the others: a GPU below it is slower than what it waits for
OWN_SHARE = 0.9


class Ranked(NamedTuple):
    """A finding with its act, which sorts the one that decides the act of its part first."""

    rank: int  # of its verdict
    finding: Finding
    act: Act


@dataclass
class Part:
    findings: list[Finding] = field(default_factory=list)
    # why it follows, and the finding
    consequences: list[tuple[str, Finding]] = field(default_factory=list)

    def add(self, other: Part) -> None:
        self.findings += other.findings
        self.consequences += other.consequences

    def ranked(self) -> list[Ranked]:
        causes = [finding for finding in self.findings if finding.kind in WHY_SLOW]
        # which has the watts of the others
        causes.sort(key=lambda f: (f.found_by != "fleet", WHY_SLOW.index(f.kind)))
        found = []
        for finding in self.findings:
            explained = causes and finding.kind in SLOWER and finding.check in POWERED
            act = causes[0].act if explained else finding.act
            found.append(Ranked(_rank(finding), finding, act))
        found.sort(key=_order)
        first = found[0]
        if causes and first.finding.kind in SLOWER and first.act == causes[0].act:
            reasons = [each for cause in causes for each in found if each.finding is cause]
            rest = [each for each in found if each not in reasons]
            found = [reasons[0]._replace(rank=first.rank), *reasons[1:], *rest]
        return found


# Device, link, port or several of them -> its part; "" is the node itself.
Parts = defaultdict[str, Part]


def _rank(finding: Finding) -> int:
    return WORST_FIRST.index(finding.verdict)


def _order(ranked: Ranked) -> tuple:
    """A link is less than the GPU of which it shows something, and slow collectives are a
    consequence of either. Those across nodes have the network among their causes.
    """
    finding = ranked.finding
    named = finding.device or finding.found_by == "world"
    collective = finding.check == COLLECTIVES and not named and finding.kind in SLOWER
    danger, is_link = KINDS[finding.kind].danger, ARROW in finding.device
    return ranked.rank, collective, danger, urgency(ranked.act), is_link


def _several(count: int, of_all: int, what: str = "GPUs") -> str:
    """The name of the part that several GPUs or ports of a node are."""
    return f"{'all ' * (count == of_all)}{count} {what}"


def _gpus_of(name: str) -> list[str]:
    """The GPUs of a part: of a GPU itself, of a link two."""
    return [device for device in name.split(BOTH_WAYS) if device.startswith("cuda:")]


Test = Callable[[Finding], bool]


def _explains(what: str) -> Test:
    return lambda finding: what in KINDS[finding.kind].explains


slows, breaks, spoils = map(_explains, ("slow", "broken", "wrong"))


def _slow(check: str, *measures: str) -> Test:
    return lambda f: (
        f.check == check and f.kind in SLOWER and (not measures or f.measure in measures)
    )


def _kinds(*kinds: str) -> Test:
    return lambda f: f.kind in kinds


@dataclass(frozen=True, eq=False)
class Rule:
    """Findings that may be consequences, and their causes."""

    words: str  # why they are
    applies: Test
    caused_by: Test
    verdicts: tuple[str, ...] = (FAIL, WARN)  # of a cause
    of_node: bool = True  # only findings that name no device
    across: bool = False  # also those of checks across nodes
    as_bad: bool = False  # a cause is at least as bad as the consequence
    prefer: str = ""  # the check whose findings are the likeliest cause


TRAINING = Rule(
    "all GPUs of the node train together, at the speed of the slowest",
    _slow("training", "tokens_per_s", "mfu"), slows, of_node=False,
)  # fmt: skip
MISSING = Rule(
    "not measured for this reason", _kinds("missing", "unlisted"), breaks, (FAIL, INCOMPLETE),
    of_node=False,
)  # fmt: skip
STRAGGLERS = ("slowest_compute", "latest_arrival")
# In this order: later ones may have earlier ones as their cause.
RULES = (
    Rule("it is one of those that torch does not see", _kinds("gpus-missing"),
         _kinds("gpu-lost", "gpus-missing"), (FAIL,)),
    Rule("collectives are as fast as the slowest GPU or link", _slow(COLLECTIVES), slows,
         as_bad=True, prefer="links"),
    Rule("all other ranks wait for it",
         lambda f: f.check == "stragglers" and f.measure in STRAGGLERS and slows(f), slows,
         prefer="stragglers"),
    TRAINING,
    Rule("wrong data spread to all ranks", _kinds("wrong-elements"), spoils, (FAIL,),
         of_node=False),
    Rule("a wrong gradient spreads to all ranks",
         lambda f: (f.kind in ("shared-gradient", "diverged") and f.check == "correctness")
         or (f.measure == "gradient_error" and f.kind != "missing"),
         spoils, (FAIL,), prefer="correctness"),
    Rule("GPUs differ from those of other nodes", _kinds("no-majority"),
         _kinds("wrong-bits"), (FAIL,)),
    Rule("traffic between nodes passes this port", _kinds("bad-node"),
         _kinds("port-down", "port-missing", "port-slow", "port-errors"), across=True),
    Rule("the check could not run",
         _kinds("cuda-error", "cuda-busy", "cuda-reset", "check-failed", "not-arrived", "not-run",
                "driver-hangs"),
         lambda f: breaks(f) and f.check in ("environment", "xids", ""), (FAIL,), of_node=False),
    MISSING,
)  # fmt: skip


def parts_of(findings: list[Finding], gpus: int, ports: Mapping[str, Port]) -> Parts:
    """`gpus`: the number of those under test."""
    parts, links, candidates = Parts(Part), defaultdict(list), defaultdict(list)
    for finding in findings:
        if rule := _rule_of(finding):
            candidates[rule].append(finding)
        elif ARROW in finding.device:
            links[finding.device].append(finding)
        else:
            parts[finding.device].findings.append(finding)
    _add_links(parts, links, gpus)
    for rule in RULES:
        if found := candidates[rule]:
            _assign(parts, rule, found, gpus)
    # without a cause
    missing = {name: parts.pop(name).findings for name in list(parts) if ARROW in name}
    _add_links(parts, missing, gpus)
    _join_fabric(parts, gpus)
    _join_gpus(parts, gpus)
    _join_ports(parts, ports)
    return parts


def _rule_of(finding: Finding) -> Rule | None:
    """By which rule a finding is a consequence if it has a cause."""
    for rule in RULES:
        of_node = not finding.device and (rule.across or finding.found_by != "world")
        if (of_node or not rule.of_node) and rule.applies(finding):
            return rule
    return None


def _assign(parts: Parts, rule: Rule, found: list[Finding], gpus: int) -> None:
    """List consequences with the part that causes them; without a cause with the parts that they
    name.
    """
    if rule is TRAINING:
        devices = {finding.device for finding in found}
        if gpus < 2 or 2 * len(devices) <= gpus:  # those that wait for it are slow, too
            return _restore(parts, found)
        if (part := _slowest(found) or _cause(parts, rule, found)) is None:
            part = _several(len(devices), gpus)
            parts[part].findings += found
            return None
    elif (part := _cause(parts, rule, found)) is None:
        return _restore(parts, _without_errors(parts, found) if rule is MISSING else found)
    own = [each for each in found if each.device == part and not parts[part].findings]
    _restore(parts, own)
    parts[part].consequences += [(rule.words, each) for each in found if each not in own]
    return None


def _restore(parts: Parts, found: Iterable[Finding]) -> None:
    for finding in found:
        parts[finding.device].findings.append(finding)


def _cause(parts: Parts, rule: Rule, found: list[Finding]) -> str | None:
    """The part with the likeliest cause: the worst, and a part rather than the whole node."""
    causes = {
        name: (not any(f.check == rule.prefer for f in own), min(map(_rank, own)), -len(own))
        for name, part in parts.items()
        if (own := [f for f in part.findings if f.verdict in rule.verdicts and rule.caused_by(f)])
    }
    if rule.as_bad:
        least = min(map(_rank, found))
        causes = {name: key for name, key in causes.items() if key[1] <= least}
    whole = causes.pop("", None)
    if causes:
        return min(causes, key=causes.__getitem__)
    # what names no device is about the node anyway
    return None if whole is None or rule.of_node else ""


def _without_errors(parts: Parts, found: list[Finding]) -> list[Finding]:
    """Numbers that are missing without an error of their check; the others are listed with the
    part that had it.
    """
    errors = {
        f.check: name
        for name, part in parts.items()
        for f in part.findings
        if f.verdict == INCOMPLETE
    }
    for finding in found:
        if finding.check in errors:
            parts[errors[finding.check]].consequences.append((MISSING.words, finding))
    return [finding for finding in found if finding.check not in errors]


def _slowest(found: list[Finding]) -> str:
    """The GPU that trains clearly slower than the others, as a rank that only waits does not; ""
    if all are alike.
    """
    speeds: dict[str, dict[str, float]] = defaultdict(dict)
    for finding in found:
        if "value" in finding.numbers:
            speeds[finding.measure][finding.device] = finding.numbers["value"]
    of_devices = max(speeds.values(), key=len, default={})
    worst = min(of_devices, key=of_devices.__getitem__, default="")
    others = [speed for device, speed in of_devices.items() if device != worst]
    return worst if others and of_devices[worst] < OWN_SHARE * statistics.median(others) else ""


def _add_links(parts: Parts, of_direction: Mapping[str, list[Finding]], gpus: int) -> None:
    """Add links, by direction, to the GPUs that they are about, or as parts of their own."""
    links: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for name, about in of_direction.items():
        a, b = sorted(name.split(ARROW, 1))
        links[a, b] += about
    # Whether most bad links fail, or none does: else those that fail show the GPU.
    failed = sum(any(each.verdict == FAIL for each in about) for about in links.values())
    alike = not failed or failed >= SHARE_OF_LINKS * len(links)
    if gpus > 2 and alike and len(links) >= SHARE_OF_LINKS * gpus * (gpus - 1) / 2:
        for about in links.values():
            parts[_several(gpus, gpus)].findings += about
        return
    while links:
        peers: dict[str, int] = defaultdict(int)
        for pair in links:
            for device in pair:
                peers[device] += 1
        worst = max(peers, key=lambda device: (peers[device] + (device in parts), device in parts))
        if peers[worst] + (worst in parts) < 2:
            break
        for pair in [pair for pair in links if worst in pair]:
            parts[worst].findings += links.pop(pair)
    for (a, b), about in links.items():
        parts[f"{a}{BOTH_WAYS}{b}"].findings += about


def _join_fabric(parts: Parts, gpus: int) -> None:
    """Wrong collectives of most GPUs, with no other findings about these, are of what connects
    them.
    """
    collective = [
        d for d, part in parts.items() if d and {f.check for f in part.findings} == {COLLECTIVES}
    ]
    if gpus > 1 and len(collective) > SHARE_OF_FABRIC * gpus:
        _join(parts, collective, FABRIC)


def _join_gpus(parts: Parts, gpus: int) -> None:
    """Make one part of those that need the same act, if they are all GPUs of the node. A single
    worse one stays. What the node has, and needs the act of all its GPUs, is theirs.
    """
    for firsts in _by_act({name: part for name, part in parts.items() if _gpus_of(name)}):
        if len(firsts) < 2 or len({gpu for name in firsts for gpu in _gpus_of(name)}) < gpus:
            continue
        least = min(first.rank for first in firsts.values())
        worst = [name for name, first in firsts.items() if first.rank == least]
        alone = worst if len(worst) == 1 and len(firsts) > 2 else []
        joined = [name for name in firsts if name not in alone]
        count = len({gpu for name in joined for gpu in _gpus_of(name)})
        _join(parts, joined, _several(count, gpus))
    name = _several(gpus, gpus)
    if name in parts and "" in parts and parts[""].findings:
        advice, node = parts[name].ranked()[0].act.advice, parts[""].ranked()
        parts[name].findings += [each.finding for each in node if each.act.advice == advice]
        parts[""].findings = [each.finding for each in node if each.act.advice != advice]
        if not parts[""].findings:
            _join(parts, [""], name)


def _join_ports(parts: Parts, ports: Mapping[str, Port]) -> None:
    """Make one part of the ports that need the same act, if no port of their kind is well."""
    for firsts in _by_act({n: part for n, part in parts.items() if n in ports or _of_port(part)}):
        kinds = {ports[name].kind for name in firsts if name in ports}
        alike = {name for name, port in ports.items() if not kinds or port.kind in kinds}
        well = [name for name in alike if ports[name].up and name not in firsts]
        if len(firsts) > 1 and not well:
            used = {*firsts, *(name for name, port in ports.items() if port.up)}
            _join(parts, list(firsts), _several(len(firsts), len(used), "ports"))


def _of_port(part: Part) -> bool:
    return any(finding.kind.startswith("port-") for finding in part.findings)


def _by_act(parts: Mapping[str, Part]) -> list[dict[str, Ranked]]:
    """Parts that need the same act, each with the finding that decides."""
    found: dict[str, dict[str, Ranked]] = defaultdict(dict)
    for name, part in parts.items():
        if part.findings:
            first = part.ranked()[0]
            found[first.act.advice][name] = first
    return list(found.values())


def _join(parts: Parts, names: list[str], name: str) -> None:
    for each in names:
        parts[name].add(parts.pop(each))
