"""The table of failure causes in docs/ddp-run.md, from the launcher's own."""

from __future__ import annotations

import sys

from hack.paths import REPO, between

sys.path.insert(0, str(REPO / "worker/src"))
from gpuworker.launch.failure_causes import CAUSES

SOURCE = "worker/src/gpuworker/launch/failure_causes.py"
FIRST, LAST = (
    f"<!-- causes: written by `make generate` from {SOURCE} -->\n",
    "<!-- end of causes -->\n",
)
HEAD = "| exit code | cause | meaning | remedy |\n|---|---|---|---|\n"


def updated(page: str) -> str:
    """The page with its table replaced."""
    rows = "".join(
        f"| {int(each.code)} | `{each.key}` | {each.meaning} | {each.remedy} |\n" for each in CAUSES
    )
    return between(page, FIRST, LAST, HEAD + rows)
