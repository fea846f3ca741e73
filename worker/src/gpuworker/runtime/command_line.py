"""Command lines that work in every locale and without docstrings, which `python -OO` removes."""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import sys
from urllib.parse import urlsplit


def first_line(docstring: str | None) -> str:
    return (docstring or "").partition("\n")[0]


def escape_output() -> None:
    """Print a character that the locale lacks as \\u2026, instead of ending with an error. An output in which not even
    ASCII is readable as such (PYTHONIOENCODING=utf-16) becomes UTF-8."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            encoding = stream.encoding if _extends_ascii(stream.encoding) else "utf-8"
            stream.reconfigure(encoding=encoding, errors="backslashreplace")


def _extends_ascii(encoding: str) -> bool:
    with contextlib.suppress(LookupError, UnicodeError):
        return "".join(map(chr, range(128))).encode(encoding) == bytes(range(128))
    return False


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
