"""Write the launcher as one file that any Python 3.10 or newer runs: python3 -m gpuworker.launch.build_zipapp FILE.

An init container puts it into the pod of a training image that knows nothing of this project. Same sources, same
bytes, whenever and wherever it is made: the launchers of a run compare them.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

MAIN = "from gpuworker.launch.launcher import main\nmain()\n"


def pack(target: Path) -> None:
    package = Path(__file__).parents[1]
    sources = [package / "__init__.py", package / "log.py", *sorted((package / "launch").glob("*.py"))]
    with target.open("wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(zipfile.ZipInfo("__main__.py"), MAIN)
            for path in sources:
                archive.writestr(
                    zipfile.ZipInfo(f"gpuworker/{path.relative_to(package).as_posix()}"), path.read_bytes()
                )
    target.chmod(0o755)


if __name__ == "__main__":
    pack(Path(sys.argv[1]))
