"""The cluster that demo and tests run on, with the worker image on its nodes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from hack.deps import go_tools, images
from hack.deps.venv import VENV
from hack.local_cluster import node
from hack.local_cluster.settings import KUBECONFIG, nodes
from hack.paths import BIN, REPO, ToolError, step
from hack.preflight import uses_local_cluster


def prepare(tests: bool = True) -> dict[str, str]:
    """Return the environment for kubectl, helm and the tests: KUBECONFIG, images, PATH, PYTHONPATH.

    Images that only the tests use are left out without `tests`: they take a minute.
    """
    environment = {
        **os.environ,
        "PATH": f"{VENV}/bin:{BIN}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPO / "generator/src"),
    }
    if not uses_local_cluster():
        if not shutil.which("helm"):
            go_tools.build("helm")
        own = {"SHELL_IMAGE": "busybox:1.37", "ETCD_IMAGE": "quay.io/coreos/etcd:v3.5.21"}
        return {**own, **environment, "WORKER_IMAGE": os.environ["IMAGE"]}
    cluster("up")
    archives = {images.worker_tag(): images.worker()}
    if tests:
        archives |= {images.SHELL_IMAGE: images.shell(), images.ETCD_IMAGE: images.etcd()}
        archives[images.track_tag()] = images.track()
    for tag, archive in archives.items():
        if any(tag not in node.images(each) for each in nodes()):
            with step(f"putting {tag} on every node"):
                cluster("load", str(archive))
    own = {"WORKER_IMAGE": images.worker_tag(), "TRACK_IMAGE": images.track_tag()}
    own |= {"SHELL_IMAGE": images.SHELL_IMAGE, "ETCD_IMAGE": images.ETCD_IMAGE}
    return {**environment, **own, "KUBECONFIG": str(KUBECONFIG)}


def cluster(*arguments: str) -> None:
    """A process of its own: it holds the lock that keeps two people from starting two clusters."""
    if subprocess.run([sys.executable, "-m", "hack.local_cluster", *arguments], cwd=REPO).returncode:
        raise ToolError(f"the local cluster: `{' '.join(arguments)}` failed, see above")
