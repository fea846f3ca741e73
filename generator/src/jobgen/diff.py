"""Unified diff of two values files that hides the values of environment variables."""

from __future__ import annotations

import difflib
import re

MAX_LINES = 40


def diff(old: str, new: str, old_name: str) -> str:
    """Return at most MAX_LINES lines of a unified diff. A changed variable shows as a change without its value."""
    a, b = old.splitlines(), new.splitlines()
    hidden_a, hidden_b = _hide(a), _hide(b)
    lines = [f"--- {old_name}", "+++ output of jobgen"]
    for hunk in difflib.SequenceMatcher(None, a, b, autojunk=False).get_grouped_opcodes(2):
        lines.append(f"@@ -{hunk[0][1] + 1} +{hunk[0][3] + 1} @@")
        for kind, a1, a2, b1, b2 in hunk:
            if kind == "equal":
                lines += [f" {line}" for line in hidden_a[a1:a2]]
            else:
                lines += [f"-{line}" for line in hidden_a[a1:a2]] + [f"+{line}" for line in hidden_b[b1:b2]]
    if len(lines) > MAX_LINES:
        lines[MAX_LINES:] = [f"… {len(lines) - MAX_LINES} more lines"]
    return "\n".join(lines)


def _hide(lines: list[str]) -> list[str]:
    """Return the lines with *** in place of the value of each variable below `env:`."""
    hidden, env_indent = [], None
    for line in lines:
        indent = len(line) - len(line.lstrip(" "))
        if env_indent is not None and line.strip() and indent <= env_indent:
            env_indent = None
        if env_indent is not None:
            name = re.match(r"\s*\w+:", line) if indent == env_indent + 2 else None
            line = f"{name[0]} ***" if name else " " * indent + "***"
        elif re.match(r"\s*env:", line):
            env_indent = indent
            line = line if line.strip() == "env:" else " " * indent + "env: ***"
        hidden.append(line)
    return hidden
