"""Log lines with a tag, and the termination message that Kubernetes keeps of a container."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys

from gpuworker.runtime.contract import TERMINATION_MESSAGE_BYTES


def log(tag: str, **facts: object) -> None:
    """Print `[TAG] node=… key=value …`. The node is NODE_RANK in a run of several nodes, else the
    node's name.

    A fact `node` replaces it, in a line about another node.
    """
    node = (
        facts.pop("node", "")
        or os.environ.get("NODE_RANK")
        or os.environ.get("NODE_NAME")
        or os.uname().nodename
    )
    words = pairs(facts)
    # One write, so that lines of processes that share an output do not mix.
    line = f"[{tag}] node={node} {words}".rstrip() + "\n"
    try:
        sys.stdout.write(line)
    except UnicodeEncodeError:  # a program of the user may have an output in ASCII
        encoding = sys.stdout.encoding
        sys.stdout.write(line.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


def pairs(facts: dict[str, object]) -> str:
    return " ".join(f"{key}={_short(value)}" for key, value in facts.items())


def write_termination_message(text: str) -> None:
    """Write the text that `kubectl describe pod` shows, cut to what Kubernetes keeps."""
    path = os.environ.get("TERMINATION_LOG", "/dev/termination-log")
    # no such file, a full disk, a pipe without a reader; the log has it
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK)
        try:
            os.write(descriptor, text.encode(errors="replace")[:TERMINATION_MESSAGE_BYTES])
        finally:
            os.close(descriptor)


def _short(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    if text.isprintable() and not re.search(r'[\s"]', text):
        return text
    # An error of several lines stays on the line of its tag, and a name of another pod controls no
    # terminal.
    return json.dumps(text, ensure_ascii=not text.replace("\n", "").isprintable())
