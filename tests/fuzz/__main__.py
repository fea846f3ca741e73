"""Fuzz jobgen: python -m tests.fuzz SECONDS.

The fuzzer starts from tests/fuzz/corpus, a few group files that reach most of jobgen, and from what earlier runs found,
which the cache keeps. An input that fails is kept in the cache too, and named. Add a readable file to the corpus for
code that the fuzzer does not reach within a minute.
"""

from __future__ import annotations

import subprocess
import sys

from hack.paths import CACHE, REPO, ToolError, main

CORPUS = REPO / "tests" / "fuzz" / "corpus"
GROWN = CACHE / "fuzz" / "corpus"
FOUND = CACHE / "fuzz" / "found"
LONGEST = 2000
FINDING = (70, 71, 77)  # libFuzzer's exit codes: too slow, too much memory, an exception


def fuzz(seconds: int) -> None:
    for folder in (GROWN, FOUND):
        folder.mkdir(parents=True, exist_ok=True)
    options = [f"-max_len={LONGEST}", f"-max_total_time={seconds}", "-timeout=10", "-print_final_stats=1"]
    command = [sys.executable, "-m", "tests.fuzz.harness", *options, f"-artifact_prefix={FOUND}/", GROWN, CORPUS]
    code = subprocess.run(command, cwd=REPO).returncode
    if code in FINDING:
        raise ToolError(f"the fuzzer found an input that fails, see above; it is in {FOUND}")
    if code:
        raise ToolError(f"the fuzzer stopped with exit code {code} before its time was over")


def entry() -> None:
    if len(sys.argv) != 2 or not sys.argv[1].isdecimal() or not int(sys.argv[1]):
        raise ToolError("give the seconds to fuzz: python -m tests.fuzz SECONDS")
    fuzz(int(sys.argv[1]))


if __name__ == "__main__":
    main(entry)
