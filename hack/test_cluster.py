"""Cluster of demo and tests, with the worker image on its nodes.

python3 -m hack.test_cluster up | down      start or remove the kind or local cluster
python3 -m hack.test_cluster env            prepare everything and print the tests' environment as shell commands
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys

from hack import kind_cluster
from hack.cluster_mode import KIND_KUBECONFIG, LOCAL_KUBECONFIG, Mode, container_runtime, mode
from hack.deps import go_tools, images
from hack.deps.venv import VENV
from hack.local_cluster import node
from hack.local_cluster.settings import nodes
from hack.paths import BIN, REPO, ToolError, main, step

# Images of tests, for clusters whose nodes can pull them.
PULLED = {
    "SHELL_IMAGE": "busybox:1.37",
    "ETCD_IMAGE": "quay.io/coreos/etcd:v3.5.35",
    "TORCH_IMAGE": "pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime",
    "PYTHON_IMAGE": "python:3.13-slim",
}


def prepare(tests: bool = True) -> dict[str, str]:
    """Return the environment for kubectl, helm and the tests: KUBECONFIG, images, PATH, PYTHONPATH.

    Images that only the tests use are left out without `tests`: they take a minute.
    """
    environment = {
        **os.environ,
        "PATH": f"{VENV}/bin:{BIN}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPO / "generator/src"),
    }
    return environment | {Mode.EXISTING: existing, Mode.KIND: kind, Mode.LOCAL: local}[mode()](
        tests
    )


def existing(tests: bool) -> dict[str, str]:
    if not shutil.which("helm"):
        go_tools.build("helm")
    return {
        **{key: os.environ.get(key, image) for key, image in PULLED.items()},
        "WORKER_IMAGE": os.environ["IMAGE"],
    }


def kind(tests: bool) -> dict[str, str]:
    cluster = kind_cluster.needed(container_runtime())
    cluster.up()
    return {**PULLED, "WORKER_IMAGE": cluster.image(), "KUBECONFIG": str(KIND_KUBECONFIG)}


def local(tests: bool) -> dict[str, str]:
    local_cluster("up")
    archives = {images.worker_tag(): images.worker()}
    if tests:
        archives |= {images.SHELL_IMAGE: images.shell(), images.ETCD_IMAGE: images.etcd()}
        archives |= {images.torch_tag(): images.torch(), images.PYTHON_IMAGE: images.python()}
    for tag, archive in archives.items():
        if any(tag not in node.images(each) for each in nodes()):
            with step(f"loading {tag} onto every node"):
                local_cluster("load", str(archive))
    names = {
        "WORKER_IMAGE": images.worker_tag(),
        "SHELL_IMAGE": images.SHELL_IMAGE,
        "ETCD_IMAGE": images.ETCD_IMAGE,
    }
    names |= {"TORCH_IMAGE": images.torch_tag(), "PYTHON_IMAGE": images.PYTHON_IMAGE}
    return {**names, "KUBECONFIG": str(LOCAL_KUBECONFIG)}


def local_cluster(*arguments: str) -> None:
    """A separate process: it holds the lock that keeps two users from starting two clusters."""
    if subprocess.run(
        [sys.executable, "-m", "hack.local_cluster", *arguments], cwd=REPO
    ).returncode:
        raise ToolError(
            f"the local cluster: `{' '.join(arguments)}` failed; the lines above give the reason"
        )


def print_environment() -> None:
    stdout = os.dup(1)
    os.dup2(2, 1)  # progress, also that of subprocesses, goes to stderr: stdout is for the shell
    environment = prepare()
    os.dup2(stdout, 1)
    for name, value in environment.items():
        if os.environ.get(name) != value:
            print(f"export {name}={shlex.quote(value)}")


def entry() -> None:
    action = sys.argv[1] if len(sys.argv) == 2 else ""
    if action not in ("up", "down", "env"):
        raise ToolError("usage: python3 -m hack.test_cluster up | down | env")
    if action == "env":
        return print_environment()
    if mode() is Mode.EXISTING:
        raise ToolError(
            f"KUBECONFIG names a cluster of yours, which `{action}` leaves alone; unset KUBECONFIG"
        )
    if mode() is Mode.LOCAL:
        return local_cluster(action)
    cluster = kind_cluster.needed(container_runtime())
    cluster.up() if action == "up" else cluster.down()
    if action == "up":
        print(f"the kind cluster is up; use it with: export KUBECONFIG={KIND_KUBECONFIG}")


if __name__ == "__main__":
    main(entry)
