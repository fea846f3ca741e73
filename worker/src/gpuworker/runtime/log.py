"""Log lines with a tag, and the termination message that Kubernetes keeps of a container."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

from gpuworker.runtime.contract import TERMINATION_MESSAGE_BYTES


def log(tag: str, **facts: object) -> None:
    """Print `[TAG] node=… key=value …`. The node is NODE_RANK in a run of several nodes, else the node's name."""
    node = os.environ.get("NODE_RANK") or os.environ.get("NODE_NAME") or os.uname().nodename
    words = " ".join(f"{key}={_short(value)}" for key, value in facts.items())
    # One write, so that lines of processes that share an output do not mix.
    sys.stdout.write(f"[{tag}] node={node} {words}".rstrip() + "\n")
    sys.stdout.flush()


def write_termination_message(text: str) -> None:
    """Write the text that `kubectl describe pod` shows, cut to what Kubernetes keeps."""
    path = Path(os.environ.get("TERMINATION_LOG", "/dev/termination-log"))
    if path.exists():
        path.write_bytes(text.encode()[:TERMINATION_MESSAGE_BYTES])


def _short(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    # An error of several lines stays on the line of its tag.
    return json.dumps(text, ensure_ascii=False) if re.search(r'[\s"]', text) else text
