"""Unified diff of two values files that hides variables, the contents of files, and credentials."""

from __future__ import annotations

import difflib
import re

from jobgen.credentials import HIDDEN, redact

MAX_LINES = 40
# Below these keys are variables (of the task, or of podTemplate) and the contents of files.
_PRIVATE = re.compile(r"(\s*(?:- +)*)(env|text|base64):")


def diff(old: str, new: str, old_name: str, known: tuple[str, ...] = ()) -> str:
    """Return at most MAX_LINES lines of a unified diff. What is hidden shows as a change without its value."""
    a, b = _hide(old.splitlines(), known), _hide(new.splitlines(), known)
    lines = [f"--- {old_name}", "+++ output of jobgen"]
    for hunk in difflib.SequenceMatcher(None, a, b, autojunk=False).get_grouped_opcodes(2):
        lines.append(f"@@ -{hunk[0][1] + 1} +{hunk[0][3] + 1} @@")
        for kind, a1, a2, b1, b2 in hunk:
            if kind == "equal":
                lines += [f" {shown}" for _, shown in a[a1:a2]]
            else:
                lines += [f"-{shown}" for _, shown in a[a1:a2]] + [f"+{shown}" for _, shown in b[b1:b2]]
    if len(lines) > MAX_LINES:
        lines[MAX_LINES:] = [f"… {len(lines) - MAX_LINES} more lines"]
    return "\n".join(lines)


def _hide(lines: list[str], known: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return pairs of a line and the text that stands for it; a hidden text of many lines is one pair."""
    pairs: list[tuple[str, str]] = []
    block, key = None, ""  # indent and name of the private key above
    in_private_key = False
    for line in lines:
        indent = len(line) - len(line.lstrip(" "))
        item = indent == block and line.lstrip().startswith("- ")  # YAML does not require a deeper indent
        if block is not None and (indent > block or item or not line.strip()):
            name = re.match(r" *\w+:", line) if key == "env" and indent == block + 2 else None
            if name or (key == "env" and not pairs[-1][1].endswith(HIDDEN)):
                pairs.append((line, f"{name[0] if name else ' ' * indent} {HIDDEN}"))
            else:
                pairs[-1] = (f"{pairs[-1][0]}\n{line}", pairs[-1][1])
            continue
        found = _PRIVATE.match(line)
        block, key = (len(found[1]), found[2]) if found else (None, "")
        if found:
            bare = key == "env" and line.strip().endswith(":")
            pairs.append((line, line if bare else f"{found[0]} {HIDDEN}"))
            continue
        in_private_key |= "PRIVATE KEY" in line
        pairs.append((line, " " * indent + HIDDEN if in_private_key else redact(line, known)))
        in_private_key &= "-----END" not in line
    return pairs
