"""What a failure's report shows beside the assertion. conftest.py of every folder with a cluster imports the hook."""

from __future__ import annotations

import subprocess
from collections.abc import Generator

import pytest

from tests.helpers.kube import Namespace


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the pods were doing, before their namespace goes."""
    report = yield
    if report.failed and report.when == "call":
        for name in {each.name for each in item.funcargs.values() if isinstance(each, Namespace)}:
            report.sections.append((f"pods of {name}", account(name)))
    return report


def account(namespace: str) -> str:
    """The pods, their events, and the last lines of each container; a cluster that does not answer raises nothing."""

    def said(*words: str) -> str:
        command = ["kubectl", "--namespace", namespace, "--request-timeout=20s", *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return f"$ {' '.join(command)}\n{done.stdout}"

    pods = said("get", "pods", "--output=name").splitlines()
    logs = [said("logs", pod, "--all-containers", "--prefix", "--tail=20") for pod in pods if pod.startswith("pod/")]
    return "\n".join([said("get", "pods", "--output=wide"), said("events"), *logs])
