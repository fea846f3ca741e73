"""Command lines that work in every locale and without docstrings, which `python -OO` removes."""

from __future__ import annotations

import contextlib
import io
import sys


def first_line(docstring: str | None) -> str:
    return (docstring or "").partition("\n")[0]


def escape_output() -> None:
    """Print a character that the locale lacks as \\u2026, instead of ending with an error. An
    output in which not even ASCII is readable as such (PYTHONIOENCODING=utf-16) becomes UTF-8."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            encoding = stream.encoding if _extends_ascii(stream.encoding) else "utf-8"
            stream.reconfigure(encoding=encoding, errors="backslashreplace")


def _extends_ascii(encoding: str) -> bool:
    with contextlib.suppress(LookupError, UnicodeError):
        return "".join(map(chr, range(128))).encode(encoding) == bytes(range(128))
    return False
