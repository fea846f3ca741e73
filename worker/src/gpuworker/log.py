"""Log lines that people grep: a tag, the node, one fact."""

from __future__ import annotations

import os


def log(tag: str, **facts: object) -> None:
    """Print `[TAG] node=… key=value …`. The node is its rank in a run of many nodes, else its name."""
    node = os.environ.get("NODE_RANK") or os.environ.get("NODE_NAME") or os.uname().nodename
    words = " ".join(f"{key}={_short(value)}" for key, value in facts.items())
    print(f"[{tag}] node={node} {words}".rstrip(), flush=True)


def _short(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return f'"{text}"' if " " in text else text
