"""`make test-of FILE=…`: the quick tests of a source file, folder, chart or page, without a
cluster.

Of a Python file those that import it; where none does, those of its folder. Tests that take many
seconds (marker slow) are left out; `make test` has them.
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

CHARTS = ("ddp-run", "gpu-accept", "job-group")
WORKER = "worker/src/gpuworker"
# The first folder that holds the path counts.
FOLDERS = {
    f"{WORKER}/fleet/formats": "browser/test_*.py worker/test_fleet_*.py",
    f"{WORKER}/fleet": "worker/test_fleet_*.py worker/test_node_*.py",
    f"{WORKER}/group": "worker/test_group_*.py",
    f"{WORKER}/launch": "worker/test_launch_*.py",
    f"{WORKER}/train/callbacks/track": "tracking/test_*.py",
    f"{WORKER}/train": "worker/test_train*.py",
    # accept, judgement, runtime: all but test_fleet_*, test_group_* and test_launch_*
    "worker": "worker/test_[!fgl]*.py worker/test_gpu_*.py worker/test_l[!a]*.py",
    "generator/src/kubectl_runs": "generator/test_runs_*.py",
    "generator": "generator/test_jobgen_*.py",
    "schemas/jobgroup": "generator/test_jobgen_*.py",
    "schemas": "charts/test_*.py",
    "charts": "charts/test_*.py",
    "gitops/argocd": "gitops/test_health.py",
    "gitops/nvsentinel": "worker/test_tests_for_others.py",
    "monitoring": "package/test_monitoring.py",
    "hack/gpu": "worker/test_gpu_pack.py",
    "": "repo/test_*.py",
}


def tests(path: str) -> list[str]:
    """Test files of a file or folder, which is given from the root of the repository."""
    pattern = next(pattern for folder, pattern in FOLDERS.items() if path.startswith(folder))
    found = [file for each in pattern.split() for file in sorted((REPO / "tests").glob(each))]
    if path.endswith(".py"):
        name = (
            path.removeprefix("worker/src/")
            .removeprefix("generator/src/")
            .removesuffix(".py")
            .replace("/", ".")
        )
        folders = {file.parent for file in found}
        every = [file for folder in folders for file in sorted(folder.glob("test_*.py"))]
        found = [file for file in every if imports(file, name)] or found
    return [str(file.relative_to(REPO)) for file in found]


def imports(file: Path, name: str) -> bool:
    package, _, module = name.rpartition(".")
    by_module = rf"from {re.escape(package)} import [^\n]*\b{module}\b" if package else r"(?!)"
    return bool(re.search(rf"\b{re.escape(name)}\b|{by_module}", file.read_text()))


def commands(path: str) -> list[list[str]]:
    first, *rest = Path(path).parts
    pytest = ["python", "-m", "pytest", "-q", "-m", "not slow"]
    if first == "tests":
        return [[*pytest, path]]
    if first != "charts":
        return [[*pytest, *tests(path)]]
    chart = [name for name in CHARTS if name in rest[:1]]
    units = [["helm-unittest", "--strict", f"charts/{name}"] for name in chart or CHARTS]
    return units if chart else [*units, [*pytest, *tests(path)]]


def entry() -> None:
    path = Path(sys.argv[1] if len(sys.argv) == 2 else "").resolve()
    if path == REPO or not path.is_relative_to(REPO) or not path.exists():
        raise ToolError(
            "name a file or folder of this repository: make test-of FILE=worker/src/gpuworker/launch"
        )
    env = os.environ | {"PATH": f"{VENV}/bin:{BIN}:{os.environ['PATH']}"}
    for command in commands(str(path.relative_to(REPO))):
        if command[0] == "helm-unittest":
            go_tools.build(command[0])
        print("$", *command, flush=True)
        code = subprocess.run(command, cwd=REPO, env=env).returncode
        if code:
            sys.exit(code)


if __name__ == "__main__":
    main(entry)
