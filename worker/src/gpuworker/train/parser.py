"""A parser that ends a program in one line, as other usage errors do."""

from __future__ import annotations

import argparse
import os
from typing import NoReturn

from gpuworker.runtime.contract import ExitCode, Tag
from gpuworker.runtime.log import log


class Parser(argparse.ArgumentParser):
    """Parser of a training program. Its usage would hide the error in the log of many ranks."""

    def error(self, message: str) -> NoReturn:
        code = int(ExitCode.USAGE)
        log(Tag.FATAL, rank=os.environ.get("RANK", "0"), exit_code=code, why=f"{message} (--help lists all flags)")
        self.exit(code)
