"""Generator of docs/jobgen-differences.md from the table: python -m tests.differential.page."""

from __future__ import annotations

from hack.paths import REPO
from tests.differential.table import ACCEPTED, OTHER, REFUSED, TABLE

PAGE = REPO / "docs" / "jobgen-differences.md"


# Defaults of the pods, which are not among the settings that SkyPilot derives from a group file.
DEFAULTS = """
## Defaults of the pods

One note for each group names them.

| default | in SkyPilot | in jobgen's chart |
|---|---|---|
| user | the image's, with `sudo` | 65532; the values podSecurityContext and containerSecurityContext |
| image | SkyPilot's own | the chart's; `image_id` names another |
| tools | an SSH server, curl, rsync and others are installed at the start | those of the image |
| CPUs and memory | 2 CPUs and 2 GB, or 4 CPUs and 16 GB for each GPU | none |
"""


def page() -> str:
    lines = [
        "# Where jobgen differs from SkyPilot",
        "",
        "jobgen and SkyPilot accept the same job groups and derive the same settings from them, except for this list.",
        "A test compares them on thousands of generated groups. It fails on a difference that is missing here, and on",
        "an entry whose example shows no difference. `python -m tests.differential.page` generates this page.",
    ]
    for kind in (REFUSED, ACCEPTED, OTHER):
        lines += ["", f"## {kind[0].upper()}{kind[1:]}", "", "| difference | reason | example |", "|---|---|---|"]
        lines += [f"| {entry.what} | {entry.why} | {_code(entry.example)} |" for entry in TABLE if entry.kind == kind]
    return "\n".join(lines) + "\n" + DEFAULTS


def _code(example: str) -> str:
    """Return the lines of an example as one table cell."""
    return "<br>".join(f"`{line}`" for line in example.replace("|", "\\|").rstrip("\n").split("\n"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
