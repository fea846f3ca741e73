"""Command lines that work in every locale and without docstrings, which `python -OO` removes."""

from __future__ import annotations

import argparse
import io
import math
import sys


def first_line(docstring: str | None) -> str:
    return (docstring or "").partition("\n")[0]


def escape_output() -> None:
    """Print a character that the locale lacks as \\u2026, instead of ending with an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def positive(word: str) -> float:
    """A number above 0, of an option. "nan" would wait for ever."""
    number = float(word)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{word}: must be above 0")
    return number


def at_least_1(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word}: must be at least 1")
    return int(word)


def port(word: str) -> int:
    number = int(word)
    if not 0 <= number < 65536:
        raise argparse.ArgumentTypeError(f"{word}: must be a port, from 0 to 65535")
    return number
