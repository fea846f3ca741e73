"""Types of options: numbers, ports and addresses, each with an error that names what is wrong."""

from __future__ import annotations

import argparse
import datetime
import math
from urllib.parse import urlsplit

LARGEST = 1 << 62  # a sum of two is an int64


def integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, such as 1000") from None


def real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def positive_int(text: str) -> int:
    if not 1 <= (number := integer(text)) <= LARGEST:
        raise argparse.ArgumentTypeError(
            f"{text} is {'less than 1' if number < 1 else f'more than {LARGEST}'}"
        )
    return number


def natural(text: str) -> int:
    """A whole number, of an option that 0 switches off."""
    return positive_int(text) if integer(text) else 0


def positive(word: str) -> float:
    """A number above 0, of an option. "nan" would wait for ever."""
    number = real(word)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{word}: must be above 0")
    return number


def date(word: str) -> str:
    """A date in the form of ISO 8601, unchanged."""
    try:
        return datetime.date.fromisoformat(word).isoformat()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{word!r} is not a date such as 2026-01-31") from None


def port(word: str) -> int:
    number = integer(word)
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
