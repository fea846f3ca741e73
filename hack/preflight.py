"""Check the machine before any work starts: python3 -m hack.preflight [cluster]. Every error names
its remedy.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from hack.cluster_mode import Mode, container_runtime, mode
from hack.paths import CACHE, REPO, ToolError, main, run

GIB = 1 << 30
INSTEAD = (
    "or set KUBECONFIG and IMAGE to use a cluster of yours, or CLUSTER=kind with Docker or Podman"
)


def toolchain() -> list[str]:
    """Requirements of building and testing, with any cluster or none."""
    found = []
    if sys.version_info < (3, 11):
        found.append(
            "Python 3.11 or newer is needed: use Debian 12 or newer, apt-get install python3 python3-venv"
        )
    elif subprocess.run(
        [sys.executable, "-c", "import ensurepip, venv"], capture_output=True
    ).returncode:
        found.append("Python has no venv: apt-get install python3-venv")
    if problem := go_problem():
        found.append(problem)
    CACHE.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(CACHE).free / GIB
    want = 5 if (CACHE / "venv").exists() else 25
    if free < want:
        found.append(
            f"{want} GiB of disk are needed under {CACHE}, {free:.1f} are free: set XDG_CACHE_HOME elsewhere"
        )
    return found


def go_problem() -> str | None:
    modules = [path.read_text() for path in (REPO / "hack" / "go").glob("*/go.mod")]
    need = max(release(re.search(r"^go (.*)$", text, re.M)[1]) for text in modules)
    shown = ".".join(map(str, need))
    if not shutil.which("go"):
        return f"Go is missing: install Go {shown} or newer and put it on the PATH"
    have = run("go", "env", "GOVERSION", cwd="/").strip()
    # From 1.21 on, Go fetches the release that a module requires, unless GOTOOLCHAIN=local forbids
    # it.
    if release(have) < need and (
        release(have) < (1, 21) or os.environ.get("GOTOOLCHAIN") == "local"
    ):
        return f"{have} is too old: install Go {shown} or newer, or set GOTOOLCHAIN=auto with Go 1.21 or newer"
    return None


def release(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def cluster() -> list[str]:
    """Requirements of the cluster that CLUSTER chooses."""
    return {Mode.EXISTING: existing, Mode.KIND: kind, Mode.LOCAL: local}[mode()]()


def existing() -> list[str]:
    found = []
    if not os.environ.get("KUBECONFIG"):
        found.append(
            "CLUSTER=existing needs KUBECONFIG: set it to the kubeconfig file of your cluster"
        )
    if not shutil.which("kubectl"):
        found.append("kubectl is missing: install it, because the cluster is yours")
    if not os.environ.get("IMAGE"):
        found.append("IMAGE must name a worker image that your nodes can pull (it is built from the folder worker); "
                     "or unset KUBECONFIG")  # fmt: skip
    return found


def kind() -> list[str]:
    found = []
    if container_runtime() is None:
        found.append(
            "CLUSTER=kind needs Docker or Podman, and neither answers: start one, or use CLUSTER=local"
        )
    if not shutil.which("kubectl"):
        found.append("kubectl is missing: install it for CLUSTER=kind")
    return found


def local() -> list[str]:
    if os.geteuid() != 0:
        return [f"root is needed for the local cluster: use sudo, {INSTEAD}"]
    found = []
    if not Path("/etc/debian_version").exists() or not shutil.which("apt-get"):
        found.append(
            f"the local cluster is made of Debian's packages: use Debian 12 or newer, {INSTEAD}"
        )
    if subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True).returncode:
        found.append(
            f"network namespaces are not allowed here: leave the container you are in, {INSTEAD}"
        )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    if memory < 7:
        found.append(
            f"the local cluster needs 8 GiB of memory, this machine has {memory:.1f}: use a larger one, {INSTEAD}"
        )
    return found


def entry() -> None:
    found = toolchain() + (cluster() if "cluster" in sys.argv[1:] else [])
    if found:
        raise ToolError("; ".join(found))


if __name__ == "__main__":
    main(entry)
