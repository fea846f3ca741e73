"""Text and JSON of runs."""

import datetime
import json
import re
from collections import Counter
from dataclasses import asdict

from kubectl_runs.causes import explain
from kubectl_runs.judge import Finding, Status, headline, shortened
from kubectl_runs.runs import Rank

# Phases of a rank: first those that need a look, then in the order of its life.
PHASES = ("failed", "lost", "stopped", "missing", "queued", "pending", "starting", "waiting", "running", "done")
FOLDED = 40  # more ranks than this are shown by task and phase
WIDTH = 160


def table(rows: list[tuple[str, ...]]) -> str:
    """Columns as wide as their cells; the last one may be cut off."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()[:WIDTH]}\n" for line in lines)


def listed(found: list[Status], everywhere: bool) -> str:
    rows = [("NAME", "CHART", "STATE", "RANKS", "RESTARTS", "GPUS", "AGE")]
    for each in found:
        begun = sum(rank.begun for rank in each.ranks)
        gpus = sum(rank.gpus for rank in each.ranks)
        ranks = f"{begun}/{len(each.ranks)}"
        rows.append((each.name, each.chart, each.state, ranks, str(each.restarts), str(gpus), age(each.created_at)))
    if everywhere:
        places = ["NAMESPACE", *(each.namespace for each in found)]
        rows = [(place, *row) for place, row in zip(places, rows, strict=True)]
    return table(rows)


def age(time: str) -> str:
    """Time since then in kubectl's units, such as 5m12s."""
    if not time:
        return "-"
    now = datetime.datetime.now(datetime.UTC)
    seconds = max(0, int((now - datetime.datetime.fromisoformat(time)).total_seconds()))
    units = [(86400, "d"), (3600, "h"), (60, "m"), (1, "s")]
    parts = [f"{seconds % (units[at - 1][0] if at else 10**12) // size}{unit}" for at, (size, unit) in enumerate(units)]
    first = next((at for at, part in enumerate(parts) if not part.startswith("0")), 3)
    return "".join(parts[first : first + 2])


def summary(status: Status) -> str:
    """One line, such as "rl: waiting (7 ranks: 6 waiting, 1 pending; 2 restarts)"."""
    counts = Counter(each.phase for each in status.ranks)
    parts = ", ".join(f"{counts[phase]} {phase}" for phase in PHASES if counts[phase])
    restarts = f"; {status.restarts} restart{'s' * (status.restarts != 1)}" if status.restarts else ""
    return f"{status.name}: {status.state} ({len(status.ranks)} ranks: {parts}{restarts})\n"


def ranks(status: Status, every_rank: bool = False) -> str:
    """One line per rank; in a large run, one per task and phase."""
    groups: dict[tuple, list[Rank]] = {}
    for rank in status.ranks:
        alone = len(status.ranks) <= FOLDED or every_rank or rank.phase in ("failed", "lost")
        groups.setdefault(rank.name if alone else (rank.task, rank.phase, rank.cause), []).append(rank)
    rows = [("RANK", "PHASE", "NODE", "RESTARTS", "AGE", "DETAIL")]
    for found in groups.values():
        rank = found[0]
        code = f"exit code {rank.exit_code}" if rank.exit_code else ""
        cause = rank.cause if rank.cause != "barrier" else ""
        detail = ": ".join(each for each in (cause, code, clean(headline(rank))) if each)
        name, node = rank.name, rank.node or "-"
        if len(found) > 1:
            name, node = f"{name}, … ({len(found)} ranks)", f"{len({each.node for each in found} - {''})} nodes"
        rows.append((name, rank.phase, node, str(rank.replaced), age(rank.started_at), detail))
    return table(rows)


def findings(status: Status) -> str:
    """Every finding with its meaning, its ranks, what the cluster or the program wrote, and the remedy."""
    return "\n".join(finding(each, status) for each in status.findings) or "nothing is wrong\n"


def finding(found: Finding, status: Status) -> str:
    meaning, remedy = explain(found.cause)
    head = "first failure: " if found.first else ""
    code = f", exit code {found.exit_code}" if found.exit_code else ""
    node = next((each.node for each in status.ranks if each.name == found.ranks[0]), "")
    place = f" on {node}" if node and node != found.ranks[0] and len(found.ranks) == 1 else ""
    lines = [f"{head}{shortened(found.ranks)}{place}: {meaning} [{found.cause}{code}]"]
    detail, said = clean(found.detail), [clean(line) for line in found.lines]
    lines += [f"  {detail}"] if detail and detail not in said else []
    lines += [*(f"  | {line}" for line in said), f"  → {remedy}"]
    return "".join(f"{line}\n" for line in lines)


def clean(text: str) -> str:
    """A text of a program or of the cluster on one line, without characters that move the cursor."""
    shown = re.sub(r"\x1b(\[[0-9;?]*[a-zA-Z]|\][^\x07\x1b]*(\x07|\x1b\\)?)", "", text)
    shown = re.sub("[\0-\x08\x0a-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]+", " ", shown)
    return shown.strip() if len(shown) <= 1000 else shown[:1000].strip() + " …"


def to_json(found: Status | list[Status]) -> str:
    """`meaning` and `remedy` explain each cause."""
    several = isinstance(found, list)
    data = [asdict(each) for each in (found if several else [found])]
    for each in (finding for status in data for finding in status["findings"]):
        each["meaning"], each["remedy"] = explain(each["cause"])
    return json.dumps(data if several else data[0], indent=2, ensure_ascii=False) + "\n"
