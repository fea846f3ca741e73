"""Types of numbers on the command line."""

from __future__ import annotations

import argparse


def positive_int(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
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
