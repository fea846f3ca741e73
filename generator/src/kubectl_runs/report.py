"""Text and JSON of runs."""

import datetime
import json
import re
from collections import Counter
from dataclasses import asdict

from kubectl_runs.judge import Finding, Status, shortened
from kubectl_runs.runs import Rank

FOLDED = 40  # more ranks than this are shown by task and phase
WIDTH = 160


def table(rows: list[tuple[str, ...]]) -> str:
    """Columns as wide as their cells; the last one may be cut off."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "".join(f"{line.rstrip()[:WIDTH]}\n" for line in lines)


def listed(found: list[Status]) -> str:
    rows = [("NAME", "CHART", "STATE", "RANKS", "RESTARTS", "GPUS", "AGE")]
    for each in found:
        ranks = f"{sum(rank.begun for rank in each.ranks)}/{len(each.ranks)}"
        gpus = str(sum(rank.gpus for rank in each.ranks))
        facts = each.name, each.chart, each.state, ranks, str(each.restarts), gpus
        rows.append((*facts, age(each.created_at)))
    return table(rows)


def age(time: str) -> str:
    """Time since then, such as 5m."""
    if not time:
        return "-"
    now = datetime.datetime.now(datetime.UTC)
    seconds = max(0, int((now - datetime.datetime.fromisoformat(time)).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def summary(status: Status) -> str:
    """One line, such as "rl: waiting (7 ranks: 6 waiting, 1 pending; 2 restarts)"."""
    counts = Counter(each.phase for each in status.ranks)
    parts = ", ".join(f"{number} {phase}" for phase, number in counts.most_common())
    restarts = (
        f"; {status.restarts} restart{'s' * (status.restarts != 1)}" if status.restarts else ""
    )
    return f"{status.name}: {status.state} ({len(status.ranks)} ranks: {parts}{restarts})\n"


def ranks(status: Status) -> str:
    """One line per rank; in a large run, one for all of a task, phase and cause."""
    alike: dict[tuple, list[Rank]] = {}
    for rank in status.ranks:
        alone = rank.name if len(status.ranks) <= FOLDED or rank.phase in ("failed", "lost") else ""
        alike.setdefault((alone, rank.task, rank.phase, rank.cause), []).append(rank)
    rows = [("RANK", "PHASE", "NODE", "RESTARTS", "AGE", "DETAIL")]
    for found in alike.values():
        rank = found[0]
        code, said = f"exit code {rank.exit_code}" if rank.exit_code else "", clean(rank.detail)
        known = () if code and said.startswith(code) else (rank.cause, code)  # a verdict has both
        detail = ": ".join(each for each in (*known, said) if each)
        more = f", … ({len(found)} ranks)" if found[1:] else ""
        facts = rank.name + more, rank.phase, rank.node or "-", str(rank.replaced)
        rows.append((*facts, age(rank.started_at), detail))
    return table(rows)


def findings(status: Status) -> str:
    """Every finding with its cause, its ranks, what the cluster or the program wrote, and the
    remedy.
    """
    said = [f"\n{finding(each, status)}" for each in status.findings]
    return "".join(said or ["\nnothing is wrong\n"])


def finding(found: Finding, status: Status) -> str:
    head = "first failure: " if found.first else ""
    code = f", exit code {found.exit_code}" if found.exit_code else ""
    node = next((each.node for each in status.ranks if each.name == found.ranks[0]), "")
    place = f" on {node}" if node and node != found.ranks[0] and len(found.ranks) == 1 else ""
    lines = [f"{head}{shortened(found.ranks)}{place}: {found.cause}{code}"]
    detail, said = clean(found.detail), [clean(line) for line in found.lines]
    lines += [f"  {detail}"] if detail and detail not in said else []
    lines += [*(f"  | {line}" for line in said), f"  → {found.remedy}"]
    return "".join(f"{line}\n" for line in lines)


def clean(text: str) -> str:
    """A text of a program or of the cluster on one line, without characters that move the
    cursor.
    """
    shown = re.sub(r"\x1b(\[[0-9;?]*[a-zA-Z]|\][^\x07\x1b]*(\x07|\x1b\\)?)", "", text)
    shown = re.sub(
        "[\0-\x08\x0a-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]+", " ", shown
    )
    return shown.strip() if len(shown) <= 1000 else shown[:1000].strip() + " …"


def to_json(found: Status | list[Status]) -> str:
    return json.dumps(found, default=asdict, indent=2, ensure_ascii=False) + "\n"
