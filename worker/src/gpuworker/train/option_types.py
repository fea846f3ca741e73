"""Types of numbers on the command line."""

from __future__ import annotations

import argparse

LARGEST = 1 << 62  # a sum of two is an int64


def positive_int(text: str) -> int:
    if not 1 <= (number := int(text)) <= LARGEST:
        raise argparse.ArgumentTypeError(f"{text} is {'less than 1' if number < 1 else f'more than {LARGEST}'}")
    return number


def non_negative_int(text: str) -> int:
    if (number := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return number


def non_negative_number(text: str) -> float:
    if not (number := float(text)) >= 0 or number == float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 on")
    return number


def probability(text: str) -> float:
    if (number := non_negative_number(text)) >= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to below 1")
    return number
