"""Flux as processes of this machine, for the cluster of KUBECONFIG."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from hack.deps import go_tools
from tests.helpers.controllers import Programs, definitions
from tests.helpers.kube import REPO
from tests.helpers.processes import free_port

SETTINGS = REPO / "gitops/flux"


@contextlib.contextmanager
def running(folder: Path) -> Iterator[None]:
    tools = go_tools.build("flux")
    environment = {
        **os.environ,
        "RUNTIME_NAMESPACE": "flux-system",
        "HOME": str(folder),
        "TMPDIR": str(folder / "tmp"),
    }
    (folder / "tmp").mkdir(parents=True)
    artifacts = f"127.0.0.1:{free_port()}"
    common = ("--metrics-addr", "127.0.0.1:0", "--health-addr", "127.0.0.1:0")
    storage = (
        f"--storage-path={folder}",
        f"--storage-addr={artifacts}",
        f"--storage-adv-addr={artifacts}",
    )
    programs = Programs(folder)
    with definitions(sorted((tools / "crds").glob("*/*.yaml")), "Flux"):
        try:
            for name, words in {"source": storage, "kustomize": (), "helm": ()}.items():
                controller = f"{name}-controller"
                programs.launch(
                    controller, tools / controller, *common, *words, environment=environment
                )
            yield
            programs.all_run()
        finally:
            programs.stop()
