"""What a process says: log lines that people grep, and the one line that Kubernetes keeps of its end."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path


def log(tag: str, **facts: object) -> None:
    """Print `[TAG] node=… key=value …`. The node is its rank in a run of many nodes, else its name."""
    node = os.environ.get("NODE_RANK") or os.environ.get("NODE_NAME") or os.uname().nodename
    words = " ".join(f"{key}={_short(value)}" for key, value in facts.items())
    # One write: the lines of processes that share an output must not mix.
    sys.stdout.write(f"[{tag}] node={node} {words}".rstrip() + "\n")
    sys.stdout.flush()


def write_termination_message(text: str) -> None:
    """Kubernetes shows this line in `kubectl describe pod`; it cuts messages at 4096 bytes."""
    path = Path(os.environ.get("TERMINATION_LOG", "/dev/termination-log"))
    if path.exists():
        path.write_bytes(text.encode()[:4000])


def _short(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    # One line, one fact: an error of several lines stays on the line of its tag.
    return json.dumps(text, ensure_ascii=False) if re.search(r'[\s"]', text) else text
