"""Coverage-guided fuzzer: python -m tests.fuzz.harness TARGET [LIBFUZZER OPTION…] CORPUS…"""

from __future__ import annotations

import random
import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "worker" / "src"))

import atheris

with atheris.instrument_imports(include=["gpuworker", "jobgen"]):
    from tests.fuzz.targets import TARGETS

from tests.differential import groups

MEMORY = 500 << 20  # of jobgen, on top of what this process has already


def mutate_group(data: bytes, limit: int, seed: int) -> bytes:
    """Mutate the bytes, or replace them by a generated group: mutated bytes rarely get past the
    parser.
    """
    if random.Random(seed).random() < 0.03:
        return groups.make(str(seed)).encode("utf-8", "surrogatepass")[:limit]
    return atheris.Mutate(data, limit)


def main():
    target = sys.argv.pop(1)
    if target == "jobgen":
        atheris.Setup(sys.argv, TARGETS[target], custom_mutator=mutate_group)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        size = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    else:
        atheris.Setup(sys.argv, TARGETS[target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
