"""CLUSTER chooses the cluster in one place; the kind cluster is checked by the commands that it
would run.
"""

import ipaddress
import json
import os
import subprocess
import sys

import pytest

from hack import cluster_mode, kind_cluster, preflight
from hack.cluster_mode import Mode
from hack.paths import REPO, ToolError
from tests.helpers.processes import ran


@pytest.mark.parametrize(
    ("environ", "runtime", "expected"),
    [
        ({}, None, Mode.LOCAL),
        ({}, "docker", Mode.KIND),
        ({"KUBECONFIG": "/home/me/.kube/config"}, "docker", Mode.EXISTING),
        ({"KUBECONFIG": str(cluster_mode.LOCAL_KUBECONFIG)}, "docker", Mode.LOCAL),
        ({"KUBECONFIG": str(cluster_mode.KIND_KUBECONFIG)}, None, Mode.KIND),
        ({"CLUSTER": "local"}, "docker", Mode.LOCAL),
        ({"CLUSTER": "kind", "KUBECONFIG": "/home/me/.kube/config"}, None, Mode.KIND),
        ({"CLUSTER": "existing"}, "podman", Mode.EXISTING),
        ({"CLUSTER": "", "KUBECONFIG": ""}, None, Mode.LOCAL),
    ],
)
def test_the_mode_follows_cluster_then_kubeconfig_then_the_container_runtime(
    environ, runtime, expected
):
    assert cluster_mode.choose(environ, lambda: runtime) is expected


def test_an_unknown_mode_is_refused_with_the_three_modes():
    with pytest.raises(ToolError, match=r"CLUSTER=minikube.*kind, existing or local"):
        cluster_mode.choose({"CLUSTER": "minikube"}, lambda: None)


@pytest.fixture
def machine(monkeypatch):
    """machine(CLUSTER=…, …): this process's environment, on a machine without programs and
    container runtime.
    """

    def prepare(**variables):
        for name in ("CLUSTER", "KUBECONFIG", "IMAGE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(preflight.shutil, "which", lambda name: None)
        for module in (preflight, cluster_mode):
            monkeypatch.setattr(module, "container_runtime", lambda: None)

    return prepare


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"CLUSTER": "kind"}, ["Docker or Podman", "kubectl"]),
        ({"CLUSTER": "existing"}, ["KUBECONFIG", "kubectl", "IMAGE"]),
        ({"KUBECONFIG": "/home/me/.kube/config"}, ["kubectl", "IMAGE"]),
    ],
)
def test_preflight_lists_everything_that_a_mode_lacks(machine, variables, words):
    machine(**variables)
    problems = preflight.cluster()
    assert len(problems) == len(words)
    assert all(word in problem for word, problem in zip(words, problems, strict=True))


def test_the_local_cluster_needs_root_and_preflight_names_the_other_modes(machine, monkeypatch):
    machine(CLUSTER="local")
    monkeypatch.setattr(preflight.os, "geteuid", lambda: 1000)
    (problem,) = preflight.cluster()
    assert "root" in problem and "KUBECONFIG" in problem and "CLUSTER=kind" in problem


def test_kind_creates_the_cluster_then_jobset_then_kueue(tmp_path, monkeypatch):
    calls: list[tuple[list[str], str]] = []

    def run(*command, input="", **_):
        calls.append(([str(word) for word in command], input))
        return "pod/jobset-controller" if "pods" in command else ""

    def at(*words):
        """Position of the only command that contains these words."""
        (found,) = [
            number for number, (command, _) in enumerate(calls) if set(words) <= set(command)
        ]
        return found

    monkeypatch.setenv("NODES", "3")
    for name, path in (("KIND_KUBECONFIG", "kubeconfig"), ("READY", "ready"), ("CACHE", "")):
        monkeypatch.setattr(kind_cluster, name, tmp_path / path)
    source = {"Dir": "/source", "Version": "v1.2.3"}
    monkeypatch.setattr(kind_cluster.go_tools, "source", lambda module, package: source)
    kind_cluster.KindCluster("podman", run).up()
    create, given = calls[at("create", "cluster")]
    assert {"KIND_EXPERIMENTAL_PROVIDER=podman", str(tmp_path / "kubeconfig")} <= {*create}
    assert [node["role"] for node in json.loads(given)["nodes"]] == [
        "control-plane",
        "worker",
        "worker",
        "worker",
    ]
    jobset, kueue = at("upgrade", "jobset"), at("upgrade", "kueue")
    assert at("create", "cluster") < jobset < at("get", "pods") < kueue < at("wait", "apiservice")
    assert "/source/charts/jobset" in calls[jobset][0]
    assert '--set-json=controllerManager.manager.image.tag="v1.2.3"' in calls[kueue][0]
    assert (tmp_path / "ready").exists()


# Every address that the local cluster gives to a node, a pod or a Service, or configures a program
# with.
ADDRESSES = """
import json
from hack.local_cluster import node, settings
first, *_ = settings.nodes()
kubelet = node.kubelet_config(first)
[[subnet]] = node.network_config(first)["plugins"][0]["ipam"]["ranges"]
names = [settings.HOST_IP, settings.API_SERVICE_IP, kubelet["address"], *kubelet["clusterDNS"]]
names += [first.ip, first.pods.partition("/")[0], subnet["subnet"].partition("/")[0]]
print(json.dumps({"addresses": names, "server": settings.API_SERVER}))
"""


def settings_of(family: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "IP_FAMILY": family, "PYTHONPATH": str(REPO)}
    return ran(sys.executable, "-c", ADDRESSES, env=environment)


@pytest.mark.parametrize(("family", "version"), [("ipv4", 4), ("ipv6", 6)])
def test_the_local_cluster_has_addresses_of_one_family(family, version):
    found = json.loads(settings_of(family).stdout)
    assert {ipaddress.ip_address(each).version for each in found["addresses"]} == {version}
    assert ("[" in found["server"]) == (version == 6)


def test_an_unknown_family_is_refused_with_the_known_ones():
    refused = settings_of("ipv5")
    assert refused.returncode and refused.stderr.strip() == "IP_FAMILY=ipv5: set it to ipv4 or ipv6"
