"""Numbers on the command line, and a parser that ends a program in one line, as other usage errors do."""

from __future__ import annotations

import argparse
import os
from typing import NoReturn

from gpuworker.runtime.contract import ExitCode, Tag
from gpuworker.runtime.log import log

LARGEST = 1 << 62  # a sum of two is an int64


class Parser(argparse.ArgumentParser):
    """Parser of a training program. Its usage would hide the error in the log of many ranks."""

    def error(self, message: str) -> NoReturn:
        code = int(ExitCode.USAGE)
        log(Tag.FATAL, rank=os.environ.get("RANK", "0"), exit_code=code, why=f"{message} (--help lists all flags)")
        self.exit(code)


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
        raise argparse.ArgumentTypeError(f"{text} is {'less than 1' if number < 1 else f'more than {LARGEST}'}")
    return number


def non_negative_int(text: str) -> int:
    if (number := integer(text)) < 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return number


def non_negative_number(text: str) -> float:
    if not (number := real(text)) >= 0 or number == float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 on")
    return number


def probability(text: str) -> float:
    if (number := non_negative_number(text)) >= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to below 1")
    return number
