"""JobSet and Kueue on the local cluster, with images of the controllers built here."""

from __future__ import annotations

from pathlib import Path

import yaml

from hack import addons
from hack.deps import go_tools
from hack.local_cluster.settings import JOBSET, KUBECONFIG, KUEUE
from hack.paths import BIN

# What a pod requests is its weight among the others. Every object of the tests waits for the
# webhooks of these two.
CPU = "2"  # of a node's 64
VALUES = {
    "jobset": {
        "image.repository": "localhost/jobset",
        "image.tag": "1",
        "image.pullPolicy": "Never",
        "controller.resources.requests.cpu": CPU,
        "controller.leaderElection.enable": False,
    },
    "kueue": {
        "controllerManager.manager.image.repository": "localhost/kueue",
        "controllerManager.manager.image.tag": "1",
        "controllerManager.manager.image.pullPolicy": "Never",
        "controllerManager.manager.resources.requests.cpu": CPU,
        "controllerManager.readinessProbe.initialDelaySeconds": 1,
        "controllerManager.readinessProbe.periodSeconds": 1,
        # Its webhooks are part of every pod's creation: a second of a busy machine must not take
        # them away.
        "controllerManager.readinessProbe.timeoutSeconds": 10,
        "controllerManager.readinessProbe.failureThreshold": 10,
        "controllerManager.livenessProbe.timeoutSeconds": 10,
        "controllerManager.livenessProbe.failureThreshold": 10,
    },
}


def install(names: list[str]) -> None:
    charts = {name: built(name) / "chart" for name in names}
    values = {name: dict(VALUES[name]) for name in names}
    if "kueue" in values:
        values["kueue"]["managerConfig.controllerManagerConfigYaml"] = kueue_config(charts["kueue"])
    addons.install(charts, values, KUBECONFIG, BIN / "helm", BIN / "kubectl")


def kueue_config(chart: Path) -> str:
    """The chart's own, without leader election: the only controller ends when it cannot renew its
    lease in 10 s.
    """
    values = yaml.safe_load((chart / "values.yaml").read_text())
    config = yaml.safe_load(values["managerConfig"]["controllerManagerConfigYaml"])
    config["leaderElection"]["leaderElect"] = False
    return yaml.safe_dump(config)


def binary(name: str) -> Path:
    return built(name) / name


def built(name: str) -> Path:
    return go_tools.build({"jobset": JOBSET, "kueue": KUEUE}.get(name, name))
