"""Run jobgen on every file of a folder within 500 MB of address space: python -m tests.fuzz.replay
FOLDER
"""

import resource
import sys
from pathlib import Path

from tests.fuzz.check import jobgen

MEMORY = 500 << 20


def main():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    files = sorted(Path(sys.argv[1]).iterdir())
    failed = 0
    for file in files:
        try:
            jobgen(file.read_bytes())
        except Exception as error:  # report it and try the other files
            failed += 1
            print(f"{file}: {type(error).__name__}: {error}")
    print(f"{len(files)} files, {failed} failed")
    sys.exit(1 if failed or not files else 0)


if __name__ == "__main__":
    main()
