"""JobSet and Kueue on the local cluster, with images of the controllers built here."""

from __future__ import annotations

from pathlib import Path

from hack import addons
from hack.deps import go_tools
from hack.local_cluster.settings import JOBSET, KUBECONFIG, KUEUE
from hack.paths import BIN

# The controllers request no CPU: the nodes belong to the tests.
VALUES = {
    "jobset": {
        "image.repository": "localhost/jobset",
        "image.tag": "1",
        "image.pullPolicy": "Never",
        "controller.resources.requests.cpu": "0",
    },
    "kueue": {
        "controllerManager.manager.image.repository": "localhost/kueue",
        "controllerManager.manager.image.tag": "1",
        "controllerManager.manager.image.pullPolicy": "Never",
        "controllerManager.manager.resources.requests.cpu": "0",
        "controllerManager.readinessProbe.initialDelaySeconds": "1",
        "controllerManager.readinessProbe.periodSeconds": "1",
        # Its webhooks are part of every pod's creation: a second of a busy machine must not take them away.
        "controllerManager.readinessProbe.timeoutSeconds": "10",
        "controllerManager.readinessProbe.failureThreshold": "10",
        "controllerManager.livenessProbe.timeoutSeconds": "10",
        "controllerManager.livenessProbe.failureThreshold": "10",
    },
}


def install_all() -> None:
    charts = {name: built(name) / "chart" for name in VALUES}
    addons.install_all(charts, VALUES, KUBECONFIG, BIN / "helm", BIN / "kubectl")


def binary(name: str) -> Path:
    return built(name) / name


def built(name: str) -> Path:
    return go_tools.build({"jobset": JOBSET, "kueue": KUEUE}.get(name, name))
