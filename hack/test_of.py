"""`make test-of FILE=…`: the tests of a source file or folder, found by what imports it, without a cluster.

Python: test files that import the module, themselves or by a helper. Charts: helm-unittest of the chart. Pages: the
tests of pages. Tests that take many seconds (marker slow) are left out; `make test` has them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from hack.deps import go_tools
from hack.deps.venv import VENV
from hack.paths import BIN, REPO, ToolError, main

SOURCES = ("generator/src", "worker/src", "")
PAGES = ["tests/repo/test_readme.py", "tests/repo/test_commands.py"]
NO_CLUSTER = ("charts", "fuzz", "generator", "repo", "worker")


def tests(path: Path) -> list[str]:
    """Test files of a Python file or folder, by its dotted name, most specific first; empty if none imports it."""
    for source in SOURCES:
        if path.is_relative_to(REPO / source):
            name = ".".join(path.relative_to(REPO / source).with_suffix("").parts)
            break
    files = [file for folder in NO_CLUSTER for file in sorted((REPO / "tests" / folder).glob("test_*.py"))]
    helpers = [file for file in (REPO / "tests/helpers").glob("*.py") if imports(file, name)]
    names = [name, *(f"tests.helpers.{helper.stem}" for helper in helpers)]
    return [str(file.relative_to(REPO)) for file in files if any(imports(file, each) for each in names)]


def imports(file: Path, name: str) -> bool:
    package, _, module = name.rpartition(".")
    by_module = rf"from {re.escape(package)} import [^\n]*\b{module}\b" if package else r"(?!)"
    return bool(re.search(rf"\b{re.escape(name)}\b|{by_module}", file.read_text()))


def commands(path: Path) -> list[list[str]]:
    inside = path.relative_to(REPO).parts
    if inside[0] == "charts" and len(inside) > 1 and inside[1] != "shared":
        go_tools.build("helm-unittest")
        return [["helm-unittest", "--strict", f"charts/{inside[1]}"]]
    if path.suffix == ".md":
        return [pytest(*PAGES)]
    if path.is_relative_to(REPO / "tests"):
        return [pytest(str(path.relative_to(REPO)))]
    if path.suffix in (".py", "") and (found := tests(path)):
        return [pytest(*found)]
    raise ToolError(f"no test imports {'/'.join(inside)}; `make test-fast` runs all that need no cluster")


def pytest(*files: str) -> list[str]:
    return ["python", "-m", "pytest", "-q", "-m", "not slow", *files]


def entry() -> None:
    path = Path(sys.argv[1] if len(sys.argv) == 2 else "").resolve()
    if path == REPO or not path.is_relative_to(REPO) or not path.exists():
        raise ToolError("name a file or folder of this repository: make test-of FILE=worker/src/gpuworker/launch")
    env = os.environ | {"PATH": f"{VENV}/bin:{BIN}:{os.environ['PATH']}"}
    for command in commands(path):
        print("$", *command, flush=True)
        code = subprocess.run(command, cwd=REPO, env=env).returncode
        if code:
            sys.exit(code)


if __name__ == "__main__":
    main(entry)
