"""What all GPUs, or all network ports, of a node have: one part, since they share its cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from gpuworker.fleet.part import Part, Parts, several
from gpuworker.fleet.places import DEVICE
from gpuworker.fleet.ranking import Ranked, ranked


def join_gpus(parts: Parts, gpus: int) -> None:
    """Make one part of those that need the same act, if they are all GPUs of the node. A single worse one stays."""
    for firsts in _by_act({name: part for name, part in parts.items() if DEVICE.search(name)}).values():
        covered = {device for part in firsts for device in DEVICE.findall(part)}
        if len(firsts) < 2 or len(covered) < gpus:
            continue
        least = min(first.rank for first in firsts.values())
        worst = [part for part, first in firsts.items() if first.rank == least]
        joined = [part for part in firsts if len(worst) > 1 or len(firsts) == 2 or part not in worst]
        names = {device for part in joined for device in DEVICE.findall(part)}
        _join(parts, joined, several(len(names), gpus))
    _take_from_node(parts, several(gpus, gpus))


def join_ports(parts: Parts, ports: Mapping[str, Mapping]) -> None:
    """Make one part of the ports that need the same act, if no port of their kind is well. `ports`: name -> facts."""
    down = {name: part for name, part in parts.items() if name in ports or _is_of_port(part)}
    for firsts in _by_act(down).values():
        kinds = {ports[name].get("kind") for name in firsts if name in ports}
        alike = {name for name, port in ports.items() if not kinds or port.get("kind") in kinds}
        well = [name for name in alike if ports[name].get("up") and name not in firsts]
        if len(firsts) > 1 and not well:
            used = {*firsts, *(name for name, port in ports.items() if port.get("up"))}
            _join(parts, list(firsts), several(len(firsts), len(used), "ports"))


def _is_of_port(part: Part) -> bool:
    return any("this network port" in finding.reason for finding in part.findings)


def _by_act(parts: Mapping[str, Part]) -> dict[str, dict[str, Ranked]]:
    """Advice of an act -> parts that need it, with the finding that decides."""
    found: dict[str, dict[str, Ranked]] = defaultdict(dict)
    for name, part in parts.items():
        if part.findings:
            first = ranked(part.findings)[0]
            found[first.act.advice][name] = first
    return found


def _join(parts: Parts, names: list[str], name: str) -> None:
    for each in names:
        parts[name].add(parts.pop(each))


def _take_from_node(parts: Parts, name: str) -> None:
    """Give what the node has, and needs the act of all its GPUs, to these."""
    if name not in parts or "" not in parts:
        return
    advice, node = ranked(parts[name].findings)[0].act.advice, ranked(parts[""].findings)
    parts[name].findings += [each.finding for each in node if each.act.advice == advice]
    parts[""].findings = [each.finding for each in node if each.act.advice != advice]
    if not parts[""].findings:
        parts[name].add(parts.pop(""))
