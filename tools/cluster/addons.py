"""JobSet and Kueue, from their own charts, with images made from our builds."""

from __future__ import annotations

from pathlib import Path

from tools import build
from tools.cluster.settings import KUBECONFIG
from tools.paths import BIN, run

# The controllers ask for no CPU: the nodes belong to the tests.
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
    },
}


def install(name: str) -> None:
    """Install the chart and wait until its webhooks serve."""
    settings = [f"--set-string={key}={value}" for key, value in VALUES[name].items() if not value.isdigit()]
    settings += [f"--set={key}={value}" for key, value in VALUES[name].items() if value.isdigit()]
    run(
        BIN / "helm", "upgrade", "--install", name, chart(name),
        "--kubeconfig", KUBECONFIG, "--namespace", f"{name}-system", "--create-namespace",
        *settings, "--wait", "--timeout", "3m",
    )  # fmt: skip


def chart(name: str) -> Path:
    return build.build(name) / "chart"


def binary(name: str) -> Path:
    return build.build(name) / name
