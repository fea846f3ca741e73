"""Earlier run: its numbers, which later ones are compared with, and its suspects."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuworker.fleet.fleet_report import Fleet, Node
from gpuworker.fleet.outliers import Known, ValueKey
from gpuworker.fleet.suspects import PartKind, Suspect
from gpuworker.judgement.report import FAIL

KEPT = "suspects.jsonl"  # in the folder of a run: [node, device, kind]


@dataclass(frozen=True)
class Earlier:
    """`values`: None if numbers are not compared. `suspects`: None if there was no earlier run."""

    values: Mapping[ValueKey, Known] | None = None
    suspects: Collection[PartKind] | None = None

    def fixed(self, nodes: Iterable[Node], now: Iterable[Suspect]) -> list[str]:
        """Parts of these nodes that were suspects, and are none now."""
        own, still = {node.node for node in nodes}, {(each.node, each.device) for each in now}
        return sorted(
            {
                f"{node} {device}".strip()
                for node, device, _ in self.suspects or ()
                if node in own and (node, device) not in still
            }
        )


NOTHING = Earlier()


def earlier_of(fleet: Fleet) -> Earlier:
    return Earlier(values(fleet), _kinds(fleet))


def values(fleet: Fleet) -> dict[ValueKey, Known]:
    doubts = {}  # why no number of a node is a measure for later ones
    for node in fleet.nodes:
        if node.injected:
            doubts[node.node] = f"the fault {node.injected} was injected there"
        elif node.verdict == FAIL:
            doubts[node.node] = f"it is {FAIL} there"
    return {
        (p.node, p.device, d.check, d.name): Known(
            p.value, d.unit, d.model, d.level, doubts.get(p.node, "")
        )
        for d in fleet.distributions
        for p in d.points
    }


def _kinds(fleet: Fleet) -> set[PartKind]:
    return {(each.node, each.device, each.kind) for each in fleet.suspects if each.node}


def remember(fleet: Fleet, folder: Path) -> None:
    """Keep the suspects for the next run. A full disk costs no more than that."""
    text = "".join(json.dumps(kind) + "\n" for kind in sorted(_kinds(fleet)))
    with contextlib.suppress(OSError):
        (folder / KEPT).write_text(text, encoding="utf-8")


def last_of(runs: Path, own: Path) -> Earlier:
    """The suspects of the newest other run. They are shown, and decide nothing."""
    try:
        others = [path for path in runs.glob(f"*/*/{KEPT}") if path.parent != own]
        files = sorted(others, key=lambda path: path.stat().st_mtime)
        if not files:
            return NOTHING
        found = set()
        for line in files[-1].read_text(encoding="utf-8").splitlines():
            node, device, kind = json.loads(line)
            found.add((str(node), str(device), str(kind)))
    except (OSError, ValueError, TypeError):
        return NOTHING
    return Earlier(None, found)
