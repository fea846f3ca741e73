"""Run jobgen on every file of a folder within 500 MB of address space: python -m tests.fuzz.replay FOLDER…"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from jobgen.api import Options
from tests.fuzz.check import check, folder

MEMORY = 500 << 20


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    options = Options(folder=folder())
    files = sorted(file for name in sys.argv[1:] for file in Path(name).iterdir())
    failed = 0
    for file in files:
        try:
            check(file.read_bytes(), options)
        except Exception as error:  # report it and try the other files
            failed += 1
            print(f"{file}: {type(error).__name__}: {error}")
    print(f"{len(files)} files, {failed} failed")
    sys.exit(1 if failed or not files else 0)


if __name__ == "__main__":
    main()
