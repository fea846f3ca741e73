"""Log lines that people grep: a tag, the node, one fact."""

from __future__ import annotations

import json
import os
import re
import sys


def log(tag: str, **facts: object) -> None:
    """Print `[TAG] node=… key=value …`. The node is its rank in a run of many nodes, else its name."""
    node = os.environ.get("NODE_RANK") or os.environ.get("NODE_NAME") or os.uname().nodename
    words = " ".join(f"{key}={_short(value)}" for key, value in facts.items())
    # One write: the lines of processes that share an output must not mix.
    sys.stdout.write(f"[{tag}] node={node} {words}".rstrip() + "\n")
    sys.stdout.flush()


def _short(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    # One line, one fact: an error of several lines stays on the line of its tag.
    return json.dumps(text, ensure_ascii=False) if re.search(r'[\s"]', text) else text
