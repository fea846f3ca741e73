"""docs/jobgen-differences.md from the table: python -m tests.differential.page."""

from __future__ import annotations

from hack.paths import REPO
from tests.differential.table import ACCEPTED, OTHER, REFUSED, TABLE

PAGE = REPO / "docs" / "jobgen-differences.md"


def page() -> str:
    lines = [
        "# Where jobgen differs from SkyPilot",
        "",
        "jobgen and SkyPilot accept the same job groups and read the same out of them, but for this list. A test",
        "compares them on thousands of generated groups; it fails on a difference that is not here, and on an",
        "entry that nothing shows. This page is written by `python -m tests.differential.page`.",
    ]
    for kind in (REFUSED, ACCEPTED, OTHER):
        lines += ["", f"## {kind[0].upper()}{kind[1:]}", "", "| what | why | example |", "|---|---|---|"]
        lines += [f"| {entry.what} | {entry.why} | {_code(entry.example)} |" for entry in TABLE if entry.kind == kind]
    return "\n".join(lines) + "\n"


def _code(example: str) -> str:
    """The lines of an example in one cell of a table."""
    return "<br>".join(f"`{line}`" for line in example.replace("|", "\\|").rstrip("\n").split("\n"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
