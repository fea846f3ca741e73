"""Kubernetes refuses an invalid pod in its own words before anything of the release exists, also one of a JobSet."""

from __future__ import annotations

import json
import subprocess
import time

import pytest

from tests.helpers.kube import REPO, Namespace, run

DEVICE = "vpc.amazonaws.com/efa"
MINE = {"name": "mine", "image": "a"}
VOLUME = {"name": "mine", "emptyDir": {}}
MOUNT = {"name": "mine", "mountPath": "/x"}
CLAIM = {"name": "c", "resourceClaimName": "c"}
PROBE = {"tcpSocket": {"port": 80}}


def container(**fields: object) -> dict:
    return {"containers": [fields]}


def limits(amounts: dict, requests: dict | None = None) -> dict:
    return container(resources={"limits": amounts, "requests": requests or {}})


def prefers(operator: str, *values: str) -> dict:
    term = {"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": operator, "values": values}]}}
    return {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}}


# What of a pod is wrong -> its spec.
INVALID = {
    "a request above its limit": limits({"memory": "32Mi"}, {"memory": "64Mi"}),
    "an unknown resource": limits({"ram": "1Gi"}),
    "two amounts of a device": limits({DEVICE: 4}, {DEVICE: 1}),
    "a device without a limit": limits({}, {DEVICE: 4}),
    "half a device": limits({DEVICE: "500m"}),
    "huge pages alone": limits({"hugepages-2Mi": "4Mi"}),
    "half a huge page": limits({"hugepages-2Mi": "3Mi", "memory": "1Gi"}),
    "a mount without a volume": container(volumeMounts=[MOUNT]),
    "a path that leaves its volume": {"volumes": [VOLUME], **container(volumeMounts=[{**MOUNT, "subPath": "a/../.."}])},
    "two volumes of a name": {"volumes": [VOLUME, VOLUME]},
    "a volume with two sources": {"volumes": [{**VOLUME, "hostPath": {"path": "/x"}}]},
    "a volume with a wrong name": {"volumes": [{**VOLUME, "name": "A_b"}]},
    "two containers of a name": {"initContainers": [MINE, MINE]},
    "a container without an image": {"initContainers": [{"name": "mine"}]},
    "a container without a name": {"initContainers": [{"image": "a"}]},
    "a variable with two values": container(
        env=[{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
    ),
    "a variable from nowhere": container(env=[{"name": "A", "valueFrom": {}}]),
    "a claim that the pod does not have": container(resources={"claims": [{"name": "c"}]}),
    "a claim without a source": {"resourceClaims": [{"name": "c"}]},
    "two claims of a name": {"resourceClaims": [CLAIM, CLAIM]},
    "Exists with a value": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
    "a toleration without a key": {"tolerations": [{"effect": "NoSchedule"}]},
    "seconds of another effect": {"tolerations": [{"key": "a", "effect": "NoSchedule", "tolerationSeconds": 1}]},
    "a selector without values": prefers("In"),
    "a selector with values of any": prefers("Exists", "b"),
    "a privileged container that may not escalate": container(
        securityContext={"privileged": True, "allowPrivilegeEscalation": False}
    ),
    "a probe of an init container that ends": {"initContainers": [{**MINE, "readinessProbe": PROBE}]},
}


def install(namespace: Namespace, workload: str, spec: dict) -> subprocess.CompletedProcess:
    values = {"workload": workload, "nodes": 1, "podTemplate": {"spec": spec}}
    command = ["helm", "install", "r", str(REPO / "charts/ddp-run"), "-n", namespace.name, "-f", "-"]
    return subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, timeout=120)


CASES = [(wrong, workload) for wrong in INVALID for workload in ("indexed-job", "jobset")]
MATRIX = [pytest.param(*case, marks=[] if n % 11 == 0 else pytest.mark.matrix) for n, case in enumerate(CASES)]


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
