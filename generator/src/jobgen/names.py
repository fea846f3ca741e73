"""Names that Kubernetes takes."""

from __future__ import annotations

import re

LABEL_LIMIT = 63
LABEL = r"[a-z]([-a-z0-9]*[a-z0-9])?"
ENV = r"[a-zA-Z_][a-zA-Z0-9_]*"


def label_problem(name: str) -> str | None:
    """Why `name` cannot be a DNS-1035 label, and what to write instead; None if it can."""
    if re.fullmatch(LABEL, name) and len(name) <= LABEL_LIMIT:
        return None
    rule = f'must be at most {LABEL_LIMIT} of a-z, 0-9 and "-", start with a letter and not end with "-"'
    better = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if better and not better[0].isalpha():
        better = f"job-{better}"
    hint = f'; write "{better}"' if re.fullmatch(LABEL, better) and len(better) <= LABEL_LIMIT else ""
    return f'"{name}" is no Kubernetes name: {rule}{hint}'


def job_name(group: str, task: str, nodes: int) -> str:
    """The longest name that the chart derives from a task's: that of its last node's Job, as JobSet names it."""
    return f"{group}-00000000-{task}-{nodes - 1}-0"
