"""The fleet report as text for a terminal: what the first screen of the page shows, and numbers."""

from __future__ import annotations

from collections import defaultdict

from gpuworker.judgement.fleet_report import WORST_FIRST, Fleet, headline

MOST_NAMED = 8


def table(fleet: Fleet) -> str:
    """Verdict, coverage, causes in the order of danger, nodes, numbers and notes."""
    lines = [headline(fleet), ""]
    if fleet.causes:
        rows = [[each.verdict, each.act, each.where, each.title] for each in fleet.causes]
        lines += [*align_columns([["VERDICT", "ACT", "WHERE", "WHAT"], *rows]), ""]
    for cause in fleet.causes:
        first = fleet.suspects[cause.suspects[0]]
        lines += [f"{cause.where}: {first.why}", f"  {first.advice}"]
        lines += [f"  in common: {'; '.join(cause.common)}"] * bool(cause.common)
    lines += [""] * bool(fleet.causes)
    by_verdict = defaultdict(list)
    for node in fleet.nodes:
        by_verdict[node.verdict].append(node.node)
    for verdict in WORST_FIRST:
        if names := by_verdict[verdict]:
            more = f" … {names[-1]}" if len(names) > MOST_NAMED else ""
            lines += [f"{verdict}, {len(names)} nodes: {', '.join(names[:MOST_NAMED])}{more}"]
    for world in fleet.worlds:
        checks = ", ".join(f"{name} {verdict}" for name, verdict in world.checks.items())
        lines += [f"Checks across nodes, {world.name}: {world.verdict} ({checks})"]
    numbers = [["CHECK", "MEASURE", "MEDIAN", "MIN", "MAX", "UNIT", "VALUES", "LIMIT"]]
    for d in fleet.distributions:
        values = [point.value for point in d.points]
        limit = f"{d.limit:.4g}" if d.limit is not None else "-"
        spread = [f"{value:.4g}" for value in (d.median, min(values), max(values))]
        numbers.append([d.check, d.name, *spread, d.unit, str(len(values)), limit])
    lines += ["", *align_columns(numbers)] * (len(numbers) > 1)
    lines += [f"Note: {note}" for note in fleet.notes]
    return "\n".join(map(printable, lines)).rstrip() + "\n"


def align_columns(rows: list[list[str]]) -> list[str]:
    """Lines with columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def printable(text: str) -> str:
    """The text without control characters: names in a report must not control the reader's
    terminal.
    """
    return "".join(char if char.isprintable() else "?" for char in text)
