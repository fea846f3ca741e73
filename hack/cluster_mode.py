"""Choice of the cluster for demo and tests: CLUSTER=kind, existing or local.

kind      a kind cluster, made with Docker or Podman
existing  the cluster of KUBECONFIG, with the worker image IMAGE that its nodes can pull
local     the cluster of hack/local_cluster: root on Debian 12 or newer, without Docker
"""

from __future__ import annotations

import enum
import functools
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping

from hack.local_cluster.settings import KUBECONFIG as LOCAL_KUBECONFIG
from hack.paths import CACHE, ToolError

KIND_KUBECONFIG = CACHE / "kind" / "kubeconfig"


class Mode(enum.Enum):
    KIND = "kind"
    EXISTING = "existing"
    LOCAL = "local"


def choose(environ: Mapping[str, str], runtime: Callable[[], str | None]) -> Mode:
    """The mode that CLUSTER names. Without it: the cluster of KUBECONFIG, else kind where `runtime`
    finds a container runtime, else local.
    """
    named, kubeconfig = environ.get("CLUSTER", ""), environ.get("KUBECONFIG", "")
    if named:
        if named not in {each.value for each in Mode}:
            raise ToolError(f"CLUSTER={named}: set it to kind, existing or local")
        return Mode(named)
    ours = {str(LOCAL_KUBECONFIG): Mode.LOCAL, str(KIND_KUBECONFIG): Mode.KIND}
    if kubeconfig:
        return ours.get(kubeconfig, Mode.EXISTING)
    return Mode.KIND if runtime() else Mode.LOCAL


@functools.cache
def container_runtime() -> str | None:
    """docker or podman, whichever answers."""
    for name in ("docker", "podman"):
        if (
            shutil.which(name)
            and subprocess.run([name, "info"], capture_output=True, timeout=60).returncode == 0
        ):
            return name
    return None


def mode() -> Mode:
    return choose(os.environ, container_runtime)
