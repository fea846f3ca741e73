"""JobSet and Kueue, from their own charts, with images made from our builds."""

from __future__ import annotations

import time
from pathlib import Path

from hack.deps import go_tools
from hack.local_cluster.controlplane import kubectl
from hack.local_cluster.settings import KUBECONFIG
from hack.paths import BIN, ToolError, run

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


def install_all() -> None:
    """JobSet's pod must exist before Kueue's webhooks do: these refuse Deployments and pods until they serve."""
    apply("jobset")
    end = time.monotonic() + 60
    while not kubectl("get", "pods", "--namespace=jobset-system", "--output=name"):
        if time.monotonic() > end:
            raise ToolError("JobSet's Deployment has made no pod for 60 s")
        time.sleep(0.2)
    apply("kueue", "--wait")
    kubectl("rollout", "status", "deployment", "--namespace=jobset-system", "--timeout=3m")


def apply(name: str, *options: str) -> None:
    settings = [f"--set-string={key}={value}" for key, value in VALUES[name].items() if not value.isdigit()]
    settings += [f"--set={key}={value}" for key, value in VALUES[name].items() if value.isdigit()]
    run(
        BIN / "helm", "upgrade", "--install", name, chart(name),
        "--kubeconfig", KUBECONFIG, "--namespace", f"{name}-system", "--create-namespace",
        *settings, *options, "--timeout", "3m",
    )  # fmt: skip


def chart(name: str) -> Path:
    return go_tools.build(name) / "chart"


def binary(name: str) -> Path:
    return go_tools.build(name) / name
