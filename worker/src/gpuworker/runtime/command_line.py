"""Command lines that work in every locale and without docstrings, which `python -OO` removes."""

from __future__ import annotations

import argparse
import io
import math
import sys
from urllib.parse import urlsplit


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


def url(word: str) -> str:
    """An address of a server. Without a scheme, the name of the host would be taken for one."""
    try:
        parts = urlsplit(word)
        complete = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not a number, half of an IPv6 address
        complete = False
    if not complete:
        raise argparse.ArgumentTypeError(f"{word}: must be a URL such as http://collector:8080")
    return word
