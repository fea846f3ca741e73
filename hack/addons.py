"""Installation of JobSet and Kueue from the charts of the releases that hack/go pins."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from hack.paths import ToolError, run


def install(
    charts: dict[str, Path],
    values: dict[str, dict[str, object]],
    kubeconfig: Path,
    helm: str | Path,
    kubectl: str | Path,
    run: Callable[..., str] = run,
) -> None:
    """Install the charts. JobSet's pod must exist before Kueue's webhooks: they refuse pods until
    they serve.
    """

    def upgrade(name: str, *options: str) -> None:
        settings = [f"--set-json={key}={json.dumps(value)}" for key, value in values[name].items()]
        run(
            helm, "upgrade", "--install", name, charts[name],
            "--kubeconfig", kubeconfig, "--namespace", f"{name}-system", "--create-namespace",
            *settings, *options, "--timeout", "3m",
        )  # fmt: skip

    def call(*arguments: str) -> str:
        return run(kubectl, "--kubeconfig", kubeconfig, *arguments)

    upgrade("jobset")
    end = time.monotonic() + 60
    while not call("get", "pods", "--namespace=jobset-system", "--output=name"):
        if time.monotonic() > end:
            raise ToolError(
                "JobSet's Deployment has created no pod for 60 s: kubectl -n jobset-system describe deploy"
            )
        time.sleep(0.2)
    if "kueue" in charts:
        upgrade("kueue", "--wait")
    call("rollout", "status", "deployment", "--namespace=jobset-system", "--timeout=3m")
    # While an API of Kueue is registered but does not answer, no namespace can be deleted.
    call("wait", "apiservice", "--all", "--for=condition=Available", "--timeout=60s")
