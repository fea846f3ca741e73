"""Coverage-guided fuzzer: python -m tests.fuzz.harness [LIBFUZZER OPTION…] CORPUS…"""

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
    """Mutate the bytes, or replace them by a generated group: mutated bytes rarely get past the parser."""
    source = random.Random(seed)
    if source.random() < 0.03:
        return groups.make(str(seed)).encode("utf-8", "surrogatepass")[:limit]
    return atheris.Mutate(data, limit)


def main() -> None:
    options = Options(folder=folder())
    # Address space for jobgen, on top of what this process has already.
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + MEMORY
    atheris.Setup(sys.argv, lambda data: check(data, options), custom_mutator=mutate)
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
