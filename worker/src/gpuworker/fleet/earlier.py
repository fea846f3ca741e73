"""Earlier run: its numbers, which later ones are compared with, and its suspects."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gpuworker.fleet.fleet_report import Distribution, Finding, Fleet, Node, natural_sort_key
from gpuworker.fleet.outliers import grade, is_compared, noise_of
from gpuworker.fleet.suspects import PartKind, Suspect
from gpuworker.judgement.report import FAIL, INCOMPLETE, PASS

ValueKey = tuple[str, str, str, str]  # node, device, check, name
MOST_NAMED = 8  # nodes in a note
KEPT = "suspects.jsonl"  # in the folder of a run: [node, device, kind]


class Known(NamedTuple):
    """A value of an earlier run."""

    value: float
    of: str  # level, model and unit
    doubt: str = ""  # why no number of this node is a measure for later ones


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
    doubts = {}  # why no number of a node is a measure for later ones
    for node in fleet.nodes:
        if node.injected:
            doubts[node.node] = f"the fault {node.injected} was injected there"
        elif node.verdict == FAIL:
            doubts[node.node] = f"it is {FAIL} there"
    values = {
        (p.node, p.device, d.check, d.name): Known(p.value, _of(d), doubts.get(p.node, ""))
        for d in fleet.distributions
        for p in d.points
    }
    return Earlier(values, _kinds(fleet))


def _of(d: Distribution) -> str:
    return f"level {d.level}, {d.model}, {d.unit}"


def compare(
    distributions: Iterable[Distribution], earlier: Mapping[ValueKey, Known]
) -> tuple[list[Finding], str]:
    """Findings about devices that were better in the earlier run, and a note with the number of
    compared values.
    """
    findings, compared, total, unlike, here = [], 0, 0, set(), set()
    for d in distributions:
        here |= {point.node for point in d.points}
        for point in d.points if is_compared(d) else ():
            total += 1
            known = earlier.get((point.node, point.device, d.check, d.name))
            if not known:
                continue
            if known.doubt or known.of != _of(d):
                unlike.add((point.node, known.doubt or f"{known.of} before, {_of(d)} after"))
            elif known.value:  # no percentage of a time below what the clock can tell
                compared += 1
                verdict, worse = grade(d, point.value, known.value)
                if verdict == PASS or abs(point.value - known.value) <= noise_of(d):
                    continue
                reason = f"{d.name} {point.value:.4g} {d.unit} is {worse:.3g} % worse than"
                reason += f" {known.value:.4g} in the baseline"
                numbers = {"measure": d.name, "value": point.value}
                findings.append(Finding(verdict, "baseline", reason, point.node, point.device,
                                        d.check, "baseline", numbers))  # fmt: skip
    findings += [
        Finding(INCOMPLETE, "contradiction", f"it is not compared with the baseline: {why}", node,
                found_by="baseline")
        for node, why in sorted(unlike)
    ]  # fmt: skip
    if not compared and not findings:
        words = "no number could be compared with the baseline"
        findings.append(Finding(INCOMPLETE, "missing", words, found_by="baseline"))
    gone = sorted({node for node, *_ in earlier} - here, key=natural_sort_key)
    words = f"; not in this run: {', '.join(gone[:MOST_NAMED])}" if gone else ""
    words += " …" * (len(gone) > MOST_NAMED)
    return findings, f"baseline: {compared} of {total} numbers compared{words}"


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
