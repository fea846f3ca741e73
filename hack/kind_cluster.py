"""A kind cluster with JobSet, Kueue and the worker image: CLUSTER=kind.

Needs Docker or Podman, kubectl, and a network from which images can be pulled.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from hack import addons
from hack.cluster_mode import KIND_KUBECONFIG
from hack.deps import go_tools, images
from hack.local_cluster.settings import nodes
from hack.paths import BIN, CACHE, REPO, ToolError, run, step

NAME = "gpu-charts"
READY = KIND_KUBECONFIG.with_name("ready")  # written last: a cluster without it is incomplete
# The charts in the sources name images of their staging registry; releases are published here.
RELEASED = {
    "jobset": ("image", "registry.k8s.io/jobset/jobset"),
    "kueue": ("controllerManager.manager.image", "registry.k8s.io/kueue/kueue"),
}


def cpu_base() -> str:
    """Dockerfile of the CPU base: the packages of hack/deps/images.py on Debian's own image."""
    patch = images.NO_LIBUV.replace("$1", "")
    return "\n".join([
        f"FROM docker.io/library/debian:{images.BASE_SUITE}-slim",
        f"RUN apt-get update && apt-get install -y --no-install-recommends {' '.join(images.BASE_PACKAGES)} python3-pip"
        " && rm -rf /var/lib/apt/lists/*",
        f"RUN {patch}",
        f"COPY {images.BASE_LIBRARIES.name} /tmp/",
        "RUN python3 -m pip install --break-system-packages --no-cache-dir --no-deps --require-hashes"
        f" --requirement /tmp/{images.BASE_LIBRARIES.name}",
        "ENV USE_LIBUV=0",
        "",
    ])  # fmt: skip


class KindCluster:
    """`runtime`: docker or podman; `run`: the function that runs a command, as hack.paths.run."""

    def __init__(self, runtime: str, run: Callable[..., str] = run):
        self.runtime, self.run = runtime, run

    def kind(self, *arguments: str | Path, **options) -> str:
        return self.run(
            "env", f"KIND_EXPERIMENTAL_PROVIDER={self.runtime}", BIN / "kind", *arguments, **options
        )

    def up(self) -> None:
        """Create the cluster with JobSet and Kueue, or leave it as it is."""
        if READY.exists() and NAME in self.kind("get", "clusters").split():
            return
        self.down()  # an incomplete cluster
        KIND_KUBECONFIG.parent.mkdir(parents=True, exist_ok=True)
        roles = [{"role": "control-plane"}, *({"role": "worker"} for _ in nodes())]
        config = {"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "nodes": roles}
        with step(f"creating a kind cluster of {len(nodes())} nodes"):
            self.kind(
                "create", "cluster", "--name", NAME, "--kubeconfig", KIND_KUBECONFIG, "--wait", "180s", "--config", "-",
                input=json.dumps(config),
            )  # fmt: skip
        with step("installing JobSet and Kueue"):
            charts, values = {}, {}
            for name, (image, repository) in RELEASED.items():
                [(package, folder, _)] = go_tools.SHIPPED[name]
                source = go_tools.source(name, package)
                charts[name] = Path(source["Dir"]) / folder
                values[name] = {
                    f"{image}.repository": repository,
                    f"{image}.tag": source["Version"],
                }
            addons.install(charts, values, KIND_KUBECONFIG, "helm", "kubectl", self.run)
        READY.touch()

    def down(self) -> None:
        """Delete the cluster; a cluster that does not exist is not an error."""
        READY.unlink(missing_ok=True)
        self.kind("delete", "cluster", "--name", NAME)

    def image(self) -> str:
        """Build the worker image, copy it onto every node and return its tag."""
        worker = images.worker_tag()
        base = f"localhost/gpu-worker-base:{images.digest(cpu_base(), images.BASE_LIBRARIES)}"
        with step(f"image {worker}"):
            context = images.BASE_LIBRARIES.parent
            self.run(self.runtime, "build", "--tag", base, "--file", "-", context, input=cpu_base())
            self.run(
                self.runtime,
                "build",
                "--build-arg",
                f"BASE_IMAGE={base}",
                "--tag",
                worker,
                REPO / "worker",
            )
        # Through an archive: `kind load docker-image` needs Docker.
        archive = CACHE / "kind" / "image.tar"
        archive.unlink(missing_ok=True)
        with step(f"loading {worker} onto every node"):
            self.run(self.runtime, "save", "--output", archive, worker)
            self.kind("load", "image-archive", archive, "--name", NAME)
        archive.unlink(missing_ok=True)
        return worker


def needed(runtime: str | None) -> KindCluster:
    """The kind cluster, after building `kind` and helm."""
    if runtime is None:
        raise ToolError(
            "CLUSTER=kind needs Docker or Podman, and neither answers: start one, or use CLUSTER=local"
        )
    for module in ("kind", "helm"):
        go_tools.build(module)
    return KindCluster(runtime)
