"""kubectl, helm and jobgen as a user runs them, and waiting for a state with a deadline."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.helpers.processes import ran

REPO = Path(__file__).resolve().parents[2]
API_VERSIONS = {
    "Job": "batch/v1",
    "StatefulSet": "apps/v1",
    "PyTorchJob": "kubeflow.org/v1",
    "TrainJob": "trainer.kubeflow.org/v1alpha1",
    "JobSet": "jobset.x-k8s.io/v1alpha2",
}
SEEDS = REPO / "tests" / "generator" / "seeds"


def run(*command: str, input: str | None = None) -> str:
    done = ran(*command, input=input, timeout=300)
    assert done.returncode == 0, (
        f"{' '.join(command)}\nexited {done.returncode}\n{done.stdout}{done.stderr}"
    )
    return done.stdout


def jobgen(*arguments: str, input: str | None = None) -> str:
    return run(sys.executable, "-m", "jobgen", *arguments, input=input)


def wait_until(found: Callable[[], object], what: str, deadline_s: float = 180):
    """Poll until `found` returns a true value, and return it. The assertion contains the last
    value.
    """
    start = time.monotonic()
    while not (value := found()):
        waited_s = time.monotonic() - start
        assert waited_s < deadline_s, f"not within {deadline_s:g} s: {what}; last seen: {value!r}"
        time.sleep(min(1 + waited_s / 10, 4))  # each call runs kubectl
    return value


@dataclass(frozen=True)
class Cluster:
    image: str

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        return run("kubectl", *arguments, input=input)

    def nodes(self) -> list[dict]:
        return json.loads(self.kubectl("get", "nodes", "-o", "json"))["items"]

    def schedulable_nodes(self) -> list[str]:
        usable = [node for node in self.nodes() if not node["spec"].get("unschedulable")]
        return sorted(node["metadata"]["name"] for node in usable)

    @property
    def repository_and_tag(self) -> tuple[str, str]:
        repository, _, tag = self.image.rpartition(":")
        return repository, tag

    def helm_image(self) -> list[str]:
        repository, tag = self.repository_and_tag
        return ["--set", f"image.repository={repository}", "--set", f"image.tag={tag}"]


def given_cluster(target: str, *more: str) -> Cluster:
    """The cluster of KUBECONFIG. Without the variables that `make TARGET` sets, the test fails; it
    never skips.
    """
    missing = [name for name in ("KUBECONFIG", "WORKER_IMAGE", *more) if not os.environ.get(name)]
    if missing:
        pytest.fail(
            f"{' and '.join(missing)} not set; run these tests with: make {target}", pytrace=False
        )
    return Cluster(os.environ["WORKER_IMAGE"])


@dataclass(frozen=True)
class Namespace:
    cluster: Cluster
    name: str

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        return self.cluster.kubectl("--namespace", self.name, *arguments, input=input)

    def helm(self, *words: str) -> str:
        return run("helm", *words, "--namespace", self.name)

    def apply(self, manifests: str):
        self.kubectl("apply", "-f", "-", input=manifests)

    def objects(self, kind: str, selector: str = "") -> list[dict]:
        chosen = [f"--selector={selector}"] if selector else []
        return json.loads(self.kubectl("get", kind, "-o", "json", *chosen))["items"]

    def lines(self, deadline_s: float, *arguments: str) -> Iterator[str]:
        """Lines of a kubectl command that does not end by itself, until the deadline."""
        command = ("kubectl", "--namespace", self.name, *arguments)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            timer = threading.Timer(deadline_s, process.kill)
            timer.start()
            try:
                yield from process.stdout
            finally:
                timer.cancel()
                process.kill()

    def watch(self, kind: str, deadline_s: float) -> Iterator[dict]:
        """Every state of every object until the deadline, also the last one before its deletion."""
        lines = []
        for line in self.lines(deadline_s, "get", kind, "--watch", "--output=json"):
            lines.append(line)
            if line == "}\n":  # the objects are indented
                yield json.loads("".join(lines))
                lines = []

    def install(self, release: str, chart: str, *settings: str, values: str | None = None) -> str:
        """Run helm install; `values` goes through standard input, as in the README."""
        given = ["--values", "-"] if values is not None else []
        return run(
            "helm", "install", release, str(REPO / "charts" / chart), "--namespace", self.name,
            *self.cluster.helm_image(), *given, *settings, input=values,
        )  # fmt: skip

    def why(self, name: str) -> str:
        """What `kubectl runs why` prints about a release or a group. Its exit code is 1 after a
        failure.
        """
        command = (sys.executable, "-m", "kubectl_runs", "why", name, "--namespace", self.name)
        done = ran(*command, timeout=60)
        return done.stdout + done.stderr

    def pods(self, release: str) -> list[dict]:
        return self.objects("pods", f"app.kubernetes.io/instance={release}")

    def logs(self, pod: str | dict, container: str) -> str:
        name = pod if isinstance(pod, str) else pod["metadata"]["name"]
        return self.kubectl("logs", name, "-c", container)

    def wait_for_end(self, release: str, ranks: int, deadline_s: float = 180) -> list[dict]:
        """Wait until `ranks` pods of the release have ended, with success or failure."""
        addresses: dict[str, str] = {}

        def ended():
            pods = self.pods(release)
            for pod in pods:  # an ended pod of Kubernetes 1.29 may have lost its address
                status = pod["status"]
                address = status.get("podIP") or addresses.get(pod["metadata"]["uid"])
                if address:
                    status["podIP"] = addresses[pod["metadata"]["uid"]] = address
            phases = [pod["status"]["phase"] for pod in pods]
            return pods if len(pods) == ranks and set(phases) <= {"Succeeded", "Failed"} else None

        return wait_until(ended, f"{ranks} pods of {release} in {self.name} ended", deadline_s)


@contextlib.contextmanager
def new_namespace(cluster: Cluster, level: str = "restricted") -> Iterator[Namespace]:
    """A namespace that enforces this level of the Pod Security Standards; deleted afterwards."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("label", "namespace", name, f"pod-security.kubernetes.io/enforce={level}")
    space = Namespace(cluster, name)
    try:
        # Kueue reads a pod's namespace from a cache, which has it a moment later; until then it
        # refuses the pod.
        wait_until(lambda: admits_pods(space), "Kueue admits pods in the namespace", 30)
        yield space
    finally:
        # A Job that replaces a pod while its namespace is deleted can keep its pods forever
        # (Kubernetes 1.34).
        space.kubectl("delete", "jobs", "--all", "--wait=false")
        cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def namespace(cluster) -> Iterator[Namespace]:
    """For the conftest.py of a folder that has a fixture `cluster`."""
    with new_namespace(cluster) as space:
        yield space


@contextlib.contextmanager
def racks(cluster: Cluster, label: str) -> Iterator[list[str]]:
    """Each node is a rack of its own, by this label; the names of the nodes."""
    nodes = cluster.schedulable_nodes()
    assert len(nodes) > 1, "this test needs two nodes"
    for node in nodes:
        cluster.kubectl("label", "node", node, f"{label}={node}")
    try:
        yield nodes
    finally:
        for node in nodes:
            cluster.kubectl("label", "node", node, f"{label}-")


POD = """
apiVersion: v1
kind: Pod
metadata: {}
spec:
  restartPolicy: Never
  securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
  containers: [{name: main, securityContext: {allowPrivilegeEscalation: false,
    capabilities: {drop: [ALL]}}}]
"""


def start_pod(
    space: Namespace, name: str, command: list[str], container: dict | None = None, **spec: object
):
    """A pod of the worker image that the level `restricted` admits."""
    pod = yaml.safe_load(POD)
    pod["metadata"]["name"] = name
    own = {"image": space.cluster.image, "command": command}
    pod["spec"]["containers"][0] |= own | (container or {})
    pod["spec"] |= spec
    space.apply(json.dumps(pod))


def admits_pods(space: Namespace) -> bool:
    probe = ["kubectl", "--namespace", space.name, "run", "probe", "--image=probe"]
    return "not found" not in ran(*probe, "--dry-run=server").stderr


def true_conditions(item: dict) -> dict[str, dict]:
    """Type of a condition that holds -> the condition."""
    found = item.get("status", {}).get("conditions") or []
    return {each["type"]: each for each in found if each["status"] == "True"}


def phases(pods: list[dict]) -> dict[str, str]:
    """Host name (J-i) -> phase."""
    return {pod["spec"]["hostname"]: pod["status"]["phase"] for pod in pods}


def by_host(pods: list[dict]) -> dict[str, dict]:
    return {pod["spec"]["hostname"]: pod for pod in pods}
