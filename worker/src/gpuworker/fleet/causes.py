"""Causes: rows of the page and of the terminal, in the order of danger. What several nodes have
is one row, with what these nodes have in common.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuworker.fleet.suspects import Suspect
from gpuworker.judgement.kinds import KINDS, SLOWER

SHARED = 3  # nodes with the same cause from which on it is one row
MOST_NAMED = 3
LEAST_SHARE = 0.25  # of the nodes with a property, for it to be what a row has in common


@dataclass(frozen=True)
class Cause:
    """One suspect, or the same on several nodes."""

    verdict: str
    act: str
    title: str
    where: str
    common: list[str]  # of its nodes, and not of all nodes
    suspects: list[int]  # places in the list of suspects


def causes(
    suspects: Sequence[Suspect], nodes: Iterable, racks: Mapping[str, list[str]]
) -> list[Cause]:
    """A row is where the first of its suspects is."""
    groups: dict[tuple, list[int]] = defaultdict(list)
    for place, each in enumerate(suspects):
        what = ("slower", each.check) if each.kind in SLOWER else (each.kind, each.measure)
        groups[each.verdict, *what, each.act, each.advice].append(place)
    rows = []
    for places in groups.values():
        shared = len({suspects[place].node for place in places}) >= SHARED
        rows += [places] if shared else [[place] for place in places]
    properties = properties_of(nodes, racks)
    order = [name for names in racks.values() for name in names]
    return [_cause(row, suspects, properties, order) for row in sorted(rows)]


def _cause(
    row: list[int], suspects: Sequence[Suspect], properties: Mapping, order: list[str]
) -> Cause:
    several = [suspects[place] for place in row]
    first, own = several[0], {each.node for each in several}
    names = [name for name in order if name in own] if len(own) > 1 else []
    where = first.part
    if names:
        where = f"{len(names)} nodes: {', '.join(names[:MOST_NAMED])}"
        where += " …" * (len(names) > MOST_NAMED)
    return Cause(
        first.verdict, first.act, title_of(several), where,
        in_common(own, properties) if names else [],
        row,
    )  # fmt: skip


def title_of(several: Sequence[Suspect]) -> str:
    """What they are, and the number that shows it; or the check, if the numbers differ."""
    kinds, measures = ({getattr(s, key) for s in several} for key in ("kind", "measure"))
    title = KINDS[several[0].kind].title if len(kinds) == 1 else "slow"
    shown = measures.pop() if len(measures) == 1 else several[0].check
    return f"{title}: {shown}" if shown else title


def racks(names: Iterable[str]) -> dict[str, list[str]]:
    """Rack -> its nodes: names that are equal up to their last part, as gpu-r12-03 and gpu-r12-04.

    One rack, "", if the names show none.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        found[re.sub(r"(^|[-_])[^-_]*$", "", name.partition(".")[0])].append(name)
    alone = sum(len(nodes) == 1 for nodes in found.values())
    if len(found) < 2 or 2 * alone > len(found):
        return {"": [name for nodes in found.values() for name in nodes]} if found else {}
    return dict(found)


def properties_of(nodes: Iterable, racks: Mapping[str, list[str]]) -> dict[tuple, set[str]]:
    """(property, value) -> the nodes that have it, without what more than half of all have."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    everyone = sum(map(len, racks.values()))
    for rack, names in racks.items():
        found["rack", rack] |= set(names)
    for node in nodes:
        for key, value in [*node.facts.items(), *(("model", model) for model in node.models)]:
            found[key, value].add(node.node)
    rare = {key: names for key, names in found.items() if 2 * len(names) <= everyone}
    return dict(sorted(rare.items(), key=lambda item: len(item[1])))


def in_common(own: set[str], properties: Mapping[tuple, set[str]]) -> list[str]:
    """What nodes share, if they are a good part of the nodes that have it."""
    return [
        f"{key} {value} ({len(own)} of its {len(having)} nodes)"
        for (key, value), having in properties.items()
        if own <= having and len(own) >= LEAST_SHARE * len(having)
    ]
