"""Commands that wait, how they ended, and a table of it in a page."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from hack.paths import between


def ended(command: list[str], limit_s: int) -> str:
    """How a command ended: `0, 31 s`."""
    begun = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s + 120)
    print(" ".join(command[:3]), done.returncode, done.stderr.strip()[-200:], flush=True)
    return f"{done.returncode}, {time.monotonic() - begun:.0f} s"


def code(cell: str) -> int:
    return int(cell.split(",")[0])


def table(found: dict[str, dict[str, str]]) -> str:
    """Column -> row -> cell, in Markdown."""
    lines = [f"| | {' | '.join(found)} |", f"|---|{'---|' * len(found)}"]
    for way in next(iter(found.values())):
        lines.append(f"| {way} | {' | '.join(cells[way] for cells in found.values())} |")
    return "\n".join(lines)


def put(page: Path, name: str, text: str) -> None:
    """Replace what stands between the marks of this name."""
    first, last = f"<!-- {name}: written by `make wait-table` -->", f"<!-- end of {name} -->"
    page.write_text(between(page.read_text(), first, last, f"\n{text}\n"))
