"""Text and JSON of a run's state."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict

from jobgen.observe import model
from jobgen.observe.findings import headline
from jobgen.observe.model import CAUSES, Finding, Rank, Status

_FOLDED = 40  # more ranks than this are shown by task and phase
_WIDTH = 160
_ALWAYS_SHOWN = (model.FAILED, model.LOST)


def summary(status: Status) -> str:
    """Return one line, such as "rl: waiting; 6 of 7 ranks run: 6 waiting, 1 pending"."""
    counts = Counter(each.phase for each in status.ranks)
    parts = ", ".join(f"{counts[phase]} {phase}" for phase in model.PHASES if counts[phase])
    restarts = f"; {status.restarts} restart{'s' * (status.restarts != 1)}" if status.restarts else ""
    return f"{status.name}: {status.state} ({len(status.ranks)} ranks: {parts}{restarts})"


def table(status: Status, every_rank: bool = False) -> str:
    """Return one line per rank; in a large run, one per task and phase."""
    fold = len(status.ranks) > _FOLDED and not every_rank
    rows = _folded(status.ranks) if fold else [_row(each) for each in status.ranks]
    rows.insert(0, ("RANK", "PHASE", "NODE", "DETAIL"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in rows
    ]
    return "\n".join(line.rstrip()[:_WIDTH] for line in lines)


def _row(rank: Rank) -> tuple[str, str, str, str]:
    code = f"exit code {rank.exit_code}" if rank.exit_code else ""
    cause = rank.cause if rank.cause != "barrier" else ""
    text = ": ".join(each for each in (cause, code, _line(headline(rank))) if each)
    return rank.name, rank.phase, rank.node or "-", text


def _folded(ranks: list[Rank]) -> list[tuple[str, str, str, str]]:
    groups: dict[tuple, list[Rank]] = {}
    for rank in ranks:
        key = (rank.task, rank.phase, rank.cause, rank.name if rank.phase in _ALWAYS_SHOWN else "")
        groups.setdefault(key, []).append(rank)
    rows = []
    for found in groups.values():
        name, phase, node, text = _row(found[0])
        if len(found) > 1:
            name, node = f"{name}, … ({len(found)} ranks)", f"{len({each.node for each in found} - {''})} nodes"
        rows.append((name, phase, node, text))
    return rows


def findings(status: Status) -> str:
    """Return every finding with its meaning, its ranks, what the cluster or the program wrote, and the remedy."""
    return "\n\n".join(_finding(each, number, status) for number, each in enumerate(status.findings))


def _finding(finding: Finding, number: int, status: Status) -> str:
    meaning, remedy = CAUSES[finding.cause]
    head = "first failure: " if finding.first else ""
    code = f", exit code {finding.exit_code}" if finding.exit_code else ""
    by_name = {each.name: each for each in status.ranks}
    first = by_name.get(finding.ranks[0])
    place = f" on {first.node}" if first and first.node and len(finding.ranks) == 1 else ""
    lines = [f"{head}{shortened(finding.ranks)}{place}: {meaning} [{finding.cause}{code}]"]
    detail = _line(finding.detail)
    if detail and detail not in map(_line, finding.lines):
        lines.append(f"  {detail}")
    lines += [f"  | {_line(each)}" for each in finding.lines]
    lines.append(f"  → {remedy}")
    return "\n".join(lines)


def shortened(names: tuple[str, ...], limit: int = 5) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def _line(text: str) -> str:
    """Return a text of a program or of the cluster on one line, without characters that move the cursor."""
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    shown = re.sub("[\0-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]+", " ", shown)
    return shown.strip() if len(shown) <= 1000 else shown[:1000].strip() + " …"


def to_json(status: Status) -> str:
    """Return the state as JSON; `meaning` and `remedy` explain each cause."""
    data = asdict(status)
    for each in data["findings"]:
        each["meaning"], each["remedy"] = CAUSES[each["cause"]]
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
