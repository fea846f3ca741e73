"""Zipapp of the launcher, one file for any Python 3.10 or newer: python3 -m gpuworker.launch.build_zipapp FILE….

An init container writes it into the pod of a training image without this project. The same sources
give the same bytes everywhere, because the launchers of a run compare their digests. A FILE called
torchrun serves the scripts of users; beside it lies a hook, with which other ways to torchrun (as a
module, by accelerate) find it.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

# Of the standard library only.
RUNTIME = (
    *("__init__", "command_line", "contract", "gpu_inventory", "json_lines", "line_server"),
    *("log", "message_auth", "processes"),
)
MAIN = "from gpuworker.launch.launcher import main\nmain()\n"


def build(target: Path) -> None:
    package = Path(__file__).parents[1]
    modules = [package / "runtime" / f"{name}.py" for name in RUNTIME]
    sources = [package / "__init__.py", *modules, *sorted((package / "launch").glob("*.py"))]
    with target.open("wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(zipfile.ZipInfo("__main__.py"), MAIN)
            for path in sources:
                name = f"gpuworker/{path.relative_to(package).as_posix()}"
                archive.writestr(zipfile.ZipInfo(name), path.read_bytes())
    target.chmod(0o755)
    if target.name == "torchrun":
        hook = target.with_name("hook")
        hook.mkdir(exist_ok=True)
        source = (package / "launch" / "rank_hook.py").read_bytes()
        (hook / "sitecustomize.py").write_bytes(source)


if __name__ == "__main__":
    for path in sys.argv[1:]:
        build(Path(path))
