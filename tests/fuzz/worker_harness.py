"""Coverage-guided fuzzer of the worker: python -m tests.fuzz.worker_harness TARGET [LIBFUZZER OPTION…] CORPUS…"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "worker" / "src"))

import atheris

with atheris.instrument_imports(include=["gpuworker"]):
    from tests.fuzz.worker_targets import TARGETS


def main() -> None:
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
