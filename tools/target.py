"""The cluster that demo and tests run on, with the worker image on its nodes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from tools import build, images
from tools.cluster import node
from tools.cluster.settings import KUBECONFIG, nodes
from tools.paths import BIN, REPO, ToolError, step
from tools.preflight import uses_local_cluster
from tools.venv import VENV


def prepare() -> dict[str, str]:
    """Return the environment for kubectl, helm and the tests: KUBECONFIG, WORKER_IMAGE, PATH, PYTHONPATH."""
    environment = {**os.environ, "PATH": f"{VENV}/bin:{BIN}:{os.environ['PATH']}", "PYTHONPATH": "generator/src"}
    if not uses_local_cluster():
        if not shutil.which("helm"):
            build.build("helm")
        return {**environment, "WORKER_IMAGE": os.environ["IMAGE"]}
    cluster("up")
    archive = images.worker()
    if any(images.worker_tag() not in node.images(each) for each in nodes()):
        with step("putting the worker image on every node"):
            cluster("load", str(archive))
    return {**environment, "KUBECONFIG": str(KUBECONFIG), "WORKER_IMAGE": images.worker_tag()}


def cluster(*arguments: str) -> None:
    """A process of its own: it holds the lock that keeps two people from starting two clusters."""
    if subprocess.run([sys.executable, "-m", "tools.cluster", *arguments], cwd=REPO).returncode:
        raise ToolError(f"the local cluster: `{' '.join(arguments)}` failed, see above")
