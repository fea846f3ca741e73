"""Kubernetes refuses an invalid pod in its own words before anything of the release exists, also one of a JobSet."""

from __future__ import annotations

import json
import subprocess
import time

import pytest

from tests.helpers.kube import REPO, Namespace, run

DEVICE = "vpc.amazonaws.com/efa"
MINE = {"name": "mine", "image": "a"}


def container(**fields: object) -> dict:
    return {"containers": [fields]}


def limits(amounts: dict, requests: dict | None = None) -> dict:
    return container(resources={"limits": amounts, "requests": requests or {}})


# What of a pod is wrong -> its spec. Of each kind of rule, which are Kubernetes' own, one or two.
INVALID = {
    "a request above its limit": limits({"memory": "32Mi"}, {"memory": "64Mi"}),
    "half a device": limits({DEVICE: "500m"}),
    "a mount without a volume": container(volumeMounts=[{"name": "mine", "mountPath": "/x"}]),
    "a volume with two sources": {"volumes": [{"name": "mine", "emptyDir": {}, "hostPath": {"path": "/x"}}]},
    "two containers of a name": {"initContainers": [MINE, MINE]},
    "a claim that the pod does not have": container(resources={"claims": [{"name": "c"}]}),
    "Exists with a value": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
    "a privileged container that may not escalate": container(
        securityContext={"privileged": True, "allowPrivilegeEscalation": False}
    ),
}


def install(namespace: Namespace, workload: str, spec: dict) -> subprocess.CompletedProcess:
    values = {"workload": workload, "nodes": 1, "podTemplate": {"spec": spec}}
    command = ["helm", "install", "r", str(REPO / "charts/ddp-run"), "-n", namespace.name, "-f", "-"]
    return subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, timeout=120)


CASES = [(wrong, workload) for wrong in INVALID for workload in ("indexed-job", "jobset")]
MATRIX = [pytest.param(*case, marks=[] if n % 8 == 0 else pytest.mark.matrix) for n, case in enumerate(CASES)]


@pytest.mark.parametrize(("wrong", "workload"), MATRIX)
def test_an_invalid_pod_is_refused_before_anything_exists(namespace: Namespace, wrong: str, workload: str) -> None:
    done = install(namespace, workload, INVALID[wrong])
    assert done.returncode and "spec.template" in done.stderr, done.stdout + done.stderr
    assert namespace.objects("jobs,jobsets,services,networkpolicies") == []


def test_the_check_leaves_nothing_and_takes_seconds(namespace: Namespace) -> None:
    """1.2 to 1.4 s on a quiet machine; here beside four other tests. The best of three times each."""
    taken: dict[str, list[float]] = {"--no-hooks": [], "--hide-notes": []}
    for option in [*taken] * 3:
        start = time.monotonic()
        namespace.install("r", "ddp-run", "--set", "workload=statefulset", option)
        taken[option].append(time.monotonic() - start)
        assert namespace.objects("jobs") == []
        run("helm", "uninstall", "r", "--wait", "--namespace", namespace.name)
    assert min(taken["--hide-notes"]) - min(taken["--no-hooks"]) < 10, taken
