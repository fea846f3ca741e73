"""The coverage-guided fuzzer: python -m tests.fuzz.harness [LIBFUZZER OPTION…] CORPUS…"""

from __future__ import annotations

import random
import resource
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["jobgen"]):
    from jobgen.api import Options

from tests.differential import groups
from tests.fuzz.check import check, folder

MEMORY = 500 << 20


def mutate(data: bytes, limit: int, seed: int) -> bytes:
    """Now and then a new group in place of the old one: bytes alone rarely get past the parser."""
    source = random.Random(seed)
    if source.random() < 0.03:
        return groups.make(str(seed)).encode("utf-8", "surrogatepass")[:limit]
    return atheris.Mutate(data, limit)


def main() -> None:
    options = Options(folder=folder())
    # What jobgen may use beside what this process has already.
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + MEMORY
    # libFuzzer starts itself again to merge; it asks a shell to run its first argument.
    arguments = [f"{sys.executable} -m tests.fuzz.harness", *sys.argv[1:]]
    atheris.Setup(arguments, lambda data: check(data, options), custom_mutator=mutate)
    # The soft limit alone: the process that libFuzzer starts to merge sets its own, and may be larger.
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
