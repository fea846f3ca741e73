"""State of the pods in the report of a failed test. The conftest.py of every folder with a cluster
imports the hook.
"""

import subprocess
from collections.abc import Generator

import pytest

from tests.helpers.kube import Namespace

RUNNING_RANKS = (
    "--selector=app.kubernetes.io/name=ddp-run",
    "--field-selector=status.phase=Running",
    "--output=name",
)
CONTROLLERS = (
    "jobset-system",
    "kueue-system",
)  # without them, nothing is installed and no group ends


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add pods, events and logs to the report before their namespace is deleted."""
    report = yield
    if report.failed and report.when == "call":
        names = {each.name for each in item.funcargs.values() if isinstance(each, Namespace)}
        # The test's own namespace comes last: the end of a long report is what a reader sees first.
        for name in CONTROLLERS if names else ():
            report.sections.append(
                (f"pods of {name}", describe_pods(name, log_lines=5000, about=names))
            )
        for name in names:
            report.sections.append((f"pods of {name}", describe_pods(name)))
    return report


def describe_pods(namespace: str, log_lines: int = 20, about: set[str] | None = None) -> str:
    """Events, pods, Jobs, the last lines of each container and where ranks are; the most telling
    comes last.

    A cluster that does not answer is not an error.

    With `about`, 100 of the last lines that name one of these namespaces: a controller serves all
    tests at once.
    """

    def output(*words):
        command = ["kubectl", "--namespace", namespace, "--request-timeout=20s", *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return f"$ {' '.join(command)}\n{done.stdout}"

    def log(pod):
        lines = output(
            "logs", pod, "--all-containers", "--prefix", f"--tail={log_lines}"
        ).splitlines()
        chosen = [line[:500] for line in lines if not about or any(name in line for name in about)]
        return "\n".join([lines[0], *chosen[-100:]])

    pods = [
        line
        for line in output("get", "pods", "--output=name").splitlines()
        if line.startswith("pod/")
    ]
    objects = ("pods",) if about else ("pods", "jobs", "jobsets", "workloads.kueue.x-k8s.io")
    described = [output("get", kind, "--output=wide") for kind in objects]
    running = output("get", "pods", *RUNNING_RANKS).splitlines()
    ranks = [line for line in running if line.startswith("pod/")]
    stacks = [
        output("exec", pod, "--container=trainer", "--", "ddp-launch", "stacks") for pod in ranks
    ]
    return "\n".join([output("events"), *described, *map(log, pods), *stacks])
