"""State of the pods in the report of a failed test. The conftest.py of every folder with a cluster imports the hook."""

from __future__ import annotations

import subprocess
from collections.abc import Generator

import pytest

from tests.helpers.kube import Namespace

CONTROLLERS = ("jobset-system", "kueue-system")  # without them, nothing is installed and no group ends


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add pods, events and logs to the report before their namespace is deleted."""
    report = yield
    if report.failed and report.when == "call":
        names = {each.name for each in item.funcargs.values() if isinstance(each, Namespace)}
        for name in (*names, *CONTROLLERS) if names else ():
            report.sections.append((f"pods of {name}", describe_pods(name)))
    return report


def describe_pods(namespace: str) -> str:
    """Pods, events and the last lines of each container. A cluster that does not answer is not an error."""

    def output(*words: str) -> str:
        command = ["kubectl", "--namespace", namespace, "--request-timeout=20s", *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return f"$ {' '.join(command)}\n{done.stdout}"

    pods = output("get", "pods", "--output=name").splitlines()
    logs = [output("logs", pod, "--all-containers", "--prefix", "--tail=20") for pod in pods if pod.startswith("pod/")]
    return "\n".join([output("get", "pods", "--output=wide"), output("events"), *logs])
