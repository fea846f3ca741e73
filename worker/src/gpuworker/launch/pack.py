"""Write the launcher as one file that any Python 3.10 or newer runs: python3 -m gpuworker.launch.pack FILE.

An init container puts it into the pod of a training image that knows nothing of this project.
"""

from __future__ import annotations

import os
import sys
import tempfile
import zipapp
from pathlib import Path

YEAR_1980 = 315532800 + 86400  # and a day, for every time zone


def pack(target: Path) -> None:
    package = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "gpuworker"
        for path in [package / "__init__.py", package / "log.py", *sorted((package / "launch").glob("*.py"))]:
            made = copy / path.relative_to(package)
            made.parent.mkdir(parents=True, exist_ok=True)
            made.write_bytes(path.read_bytes())
        for path in Path(folder).rglob("*"):
            os.utime(path, (YEAR_1980, YEAR_1980))  # the first time that zip knows: same sources, same bytes
        zipapp.create_archive(folder, target, interpreter="/usr/bin/env python3", main="gpuworker.launch.ddp:main")
    target.chmod(0o755)


if __name__ == "__main__":
    pack(Path(sys.argv[1]))
