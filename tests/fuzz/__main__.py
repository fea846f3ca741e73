"""Fuzz jobgen: python -m tests.fuzz SECONDS, or python -m tests.fuzz merge.

What the fuzzer learns is kept in the cache; `merge` writes the smallest part of it that reaches as much code to
tests/fuzz/corpus. An input that fails is kept in the cache too, and named.
"""

from __future__ import annotations

import subprocess
import sys

from hack.paths import CACHE, REPO, ToolError, built_once, main

CORPUS = REPO / "tests" / "fuzz" / "corpus"
GROWN = CACHE / "fuzz" / "corpus"
FOUND = CACHE / "fuzz" / "found"
LONGEST = 2000
FINDING = (70, 71, 77)  # libFuzzer's exit codes: too slow, too much memory, an exception


def harness(*arguments: object) -> None:
    command = [sys.executable, "-m", "tests.fuzz.harness", f"-max_len={LONGEST}", *map(str, arguments)]
    code = subprocess.run(command, cwd=REPO).returncode
    if code in FINDING:
        raise ToolError(f"the fuzzer found something, see above; the input lies in {FOUND}")
    if code:
        raise ToolError(f"the fuzzer did not run to its end: exit code {code}")


def fuzz(seconds: int) -> None:
    for folder in (GROWN, FOUND):
        folder.mkdir(parents=True, exist_ok=True)
    harness(
        f"-max_total_time={seconds}", "-timeout=10", f"-artifact_prefix={FOUND}/", "-print_final_stats=1", GROWN, CORPUS
    )


def merge() -> None:
    with built_once(CORPUS) as scratch:
        scratch.mkdir()
        harness("-set_cover_merge=1", scratch, GROWN, CORPUS)
        if not any(scratch.iterdir()):
            raise ToolError("the merge left nothing")


def entry() -> None:
    what = sys.argv[1:]
    if what == ["merge"]:
        merge()
    elif len(what) == 1 and what[0].isdecimal() and int(what[0]):
        fuzz(int(what[0]))
    else:
        raise ToolError("give the seconds to fuzz, or `merge`")


if __name__ == "__main__":
    main(entry)
