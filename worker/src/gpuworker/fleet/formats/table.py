"""The fleet report as text for a terminal."""

from __future__ import annotations

from gpuworker.fleet.fleet_report import Fleet, describe_coverage, part_of

SHORT = {"PASS": "pass", "WARN": "WARN", "FAIL": "FAIL", "INCOMPLETE": "INC", "SKIP": "skip"}


def table(fleet: Fleet) -> str:
    """Verdict, coverage, nodes, numbers, findings and notes."""
    lines = [
        f"{fleet.verdict}{' (CPU rehearsal)' if fleet.rehearsal else ''}: {describe_coverage(fleet)}",
        "",
    ]
    if fleet.nodes:
        rows = [["NODE", "VERDICT", "RUN", *fleet.checks]]
        for node in fleet.nodes:
            marks = [
                SHORT[node.checks[name]] if name in node.checks else "-" for name in fleet.checks
            ]
            rows.append([node.node, node.verdict, node.run_id, *marks])
        lines += align_columns(rows) + [""]
    for world in fleet.worlds:
        checks = ", ".join(f"{name} {SHORT[verdict]}" for name, verdict in world.checks.items())
        lines += [f"Cross-node checks, {world.name}: {world.verdict} ({checks})", ""]
    numbers = [["CHECK", "MEASURE", "MEDIAN", "MIN", "MAX", "UNIT", "VALUES", "LIMIT"]]
    for d in fleet.distributions:
        values = [point.value for point in d.points]
        limit = f"{d.limit:.4g}" if d.limit is not None else "-"
        spread = [f"{value:.4g}" for value in (d.median, min(values), max(values))]
        numbers.append([d.check, d.name, *spread, d.unit, str(len(values)), limit])
    if len(numbers) > 1:
        lines += align_columns(numbers) + [""]
    if fleet.findings:
        lines += ["Findings:"]
        lines += [
            f"  {f.verdict:<10} {part_of(f) or 'fleet'}: {f.reason} [{f.found_by}]"
            for f in fleet.findings
        ]
        lines += [""]
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
