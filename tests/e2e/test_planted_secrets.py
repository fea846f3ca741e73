"""Twelve planted credentials: no object but their Secret, no log, no page and no file of a pod
contains one.
"""

import base64
import gzip
import json
import re
import secrets
import time
from collections.abc import Iterator

import pytest
import yaml

from hack.cluster_mode import Mode, mode
from hack.local_cluster.settings import nodes
from tests.e2e.test_gpu_accept import fleet_is_ready, served
from tests.helpers.ddp_pods import node_pods
from tests.helpers.group_pods import launch, wait_for_output
from tests.helpers.kube import Namespace, wait_until
from tests.helpers.processes import ran

pytestmark = pytest.mark.skipif(
    mode() is not Mode.LOCAL, reason="only the local cluster's nodes are folders here"
)
KEYS = """\
run-key: key
fleet-key: key
group-key: key
pluto: PLUTO_API_KEY
mlflow: MLFLOW_TRACKING_USERNAME MLFLOW_TRACKING_PASSWORD MLFLOW_TRACKING_TOKEN
hub: token
wandb: WANDB_API_KEY
tls: client.key
grp-secrets: HF_TOKEN S3_SECRET
"""
# Where the container runtime itself keeps the variables of containers, on the node's disk.
RUNTIME = ("io.containerd.metadata", "io.containerd.runtime", "io.containerd.grpc")
# Every rank sees the credentials, runs until a file appears, and then fails.
WAIT = """\
import os, sys, time, torch.distributed as dist
dist.init_process_group("gloo")
assert all(os.environ.get(name) for name in sys.argv[1:]), "a variable is missing"
open("/tmp/own-file", "w").write("written")
print("runs", flush=True)
while not os.path.exists("/tmp/end"):
    time.sleep(0.2)
raise RuntimeError("the planted failure")
"""
RUN = """\
nodes: 2
placement: {onePodPerNode: required}  # so that each node has a file of the program
authentication: {secretName: run-key}
program: {args: [/program/wait.py, PLUTO_API_KEY, MLFLOW_TRACKING_PASSWORD, WANDB_API_KEY, HF_TOKEN]}
env:
  MLFLOW_TRACKING_URI: http://127.0.0.1:9
  PLUTO_API_KEY: {valueFrom: {secretKeyRef: {name: pluto, key: PLUTO_API_KEY}}}
  MLFLOW_TRACKING_PASSWORD: {valueFrom: {secretKeyRef: {name: mlflow, key: MLFLOW_TRACKING_PASSWORD}}}
  HF_TOKEN: {valueFrom: {secretKeyRef: {name: hub, key: token}}}
  OMP_NUM_THREADS: "1"
podTemplate:
  spec:
    volumes:
      - {name: program, configMap: {name: program}}
      - {name: tls, secret: {secretName: tls}}
    containers:
      - envFrom: [{secretRef: {name: wandb}}]
        volumeMounts: [{name: program, mountPath: /program}, {name: tls, mountPath: /tls}]
"""
GROUP = """\
---
name: grp
execution: parallel
---
name: a
num_nodes: 2
secrets: {HF_TOKEN: null, S3_SECRET: null}
run: |
  [ -n "$HF_TOKEN" ] && [ -n "$S3_SECRET" ] && echo runs
  until [ -e /tmp/end ]; do sleep 0.2; done
  exit 7
"""


@pytest.fixture
def planted(namespace) -> dict[str, str]:
    """Text of a credential -> its Secret and key. All are stored in the namespace."""
    found = {}
    for name, keys in yaml.safe_load(KEYS).items():
        values = {key: f"planted-{secrets.token_hex(16)}" for key in keys.split()}
        found |= {value: f"{name}.{key}" for key, value in values.items()}
        literals = [f"--from-literal={key}={value}" for key, value in values.items()]
        namespace.kubectl("create", "secret", "generic", name, *literals)
    assert len(found) == 12
    return found


def texts_of_objects(space: Namespace) -> Iterator[tuple[str, str]]:
    """Every object of the namespace but the planted Secrets; Helm's records decoded."""
    kinds = space.cluster.kubectl(
        "api-resources", "--namespaced", "--verbs=list", "-o", "name"
    ).split()
    for kind in kinds:
        for item in space.objects(kind):
            name = f"{kind}/{item['metadata']['name']}"
            if kind != "secrets":
                yield name, json.dumps(item)
            elif item["type"] == "helm.sh/release.v1":
                yield (
                    name,
                    gzip.decompress(
                        base64.b64decode(base64.b64decode(item["data"]["release"]))
                    ).decode(),
                )


def texts_of_logs(space: Namespace) -> Iterator[tuple[str, str]]:
    for pod in space.objects("pods"):
        name = pod["metadata"]["name"]
        yield f"log of {name}", space.kubectl("logs", name, "--all-containers", "--prefix")
        yield f"description of {name}", space.kubectl("describe", "pod", name)


def files_on_the_nodes(since: float, words: list[str], running: bool) -> Iterator[str]:
    """Files that were written since then below the nodes' folders, and contain a word: of pods,
    logs and volumes.

    A Secret's own volume is a tmpfs of the node, which is not among them.
    """
    for node in nodes():
        command = [
            "find",
            str(node.folder),
            "-xdev",
            "-type",
            "f",
            "-newermt",
            f"@{since:.0f}",
            "-print0",
        ]
        written = ran(*command, timeout=120).stdout.split("\0")
        ours = [path for path in written if path and not any(part in path for part in RUNTIME)]
        assert not running or any(path.endswith("own-file") for path in ours), (
            "the program's own file is not found"
        )
        for start in range(0, len(ours), 500):
            some = ours[start : start + 500]
            grep = ["grep", "-laF", *[f"-e{word}" for word in words], "--", *some]
            yield from ran(*grep, timeout=120).stdout.splitlines()


def in_the_pods(space: Namespace) -> Iterator[tuple[str, str]]:
    """Command lines of the processes, and files in memory but the mounted Secrets, in pods that
    run.
    """
    for pod in space.objects("pods", "app.kubernetes.io/instance"):
        name, spec = pod["metadata"]["name"], pod["spec"]
        mounted = {volume["name"] for volume in spec["volumes"] if "secret" in volume}
        for container in spec["containers"] if pod["status"]["phase"] == "Running" else ():
            paths = [
                each["mountPath"] for each in container["volumeMounts"] if each["name"] in mounted
            ]
            others = " ".join(f"-not -path '{path}/*'" for path in paths)
            find = (
                f"find /dev/shm /run /tmp -type f {others} 2>/dev/null | xargs -r cat 2>/dev/null"
            )
            script = f"{{ cat /proc/[0-9]*/cmdline; {find}; }} | tr -cd '[:print:]\\n'"
            yield (
                f"inside {name}",
                space.kubectl("exec", name, "-c", container["name"], "--", "sh", "-c", script),
            )


def found_in(planted: dict[str, str], texts: Iterator[tuple[str, str]]) -> list[str]:
    pattern = re.compile("|".join(map(re.escape, planted)))
    encoded = {base64.b64encode(value.encode()).decode().rstrip("="): value for value in planted}
    also = re.compile("|".join(map(re.escape, encoded)))
    places, seen = [], 0
    for place, text in texts:
        seen += 1
        places += [f"{place}: {planted[value]}" for value in set(pattern.findall(text))]
        places += [
            f"{place}: {planted[encoded[code]]} (base64)" for code in set(also.findall(text))
        ]
    assert seen > 5, "something was searched"
    return places


def install_all(space: Namespace):
    program = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "program"},
        "data": {"wait.py": WAIT},
    }
    space.apply(json.dumps(program))
    space.install("run", "ddp-run", values=RUN)
    fleet = {"device": "cpu", "nodes": len(nodes()), "checks": ["environment", "host"]}
    space.install(
        "accept",
        "gpu-accept",
        values=json.dumps(fleet | {"authentication": {"secretName": "fleet-key"}}),
    )
    launch(space, GROUP, "--set", "authentication.secretName=group-key,secretName=grp-secrets")


def test_no_credential_leaves_its_secret(namespace, planted):
    since = time.time() - 1
    install_all(namespace)
    for host in ("a-0", "a-1"):
        wait_for_output(namespace, host, "runs")

    def logs():
        pods = node_pods(namespace)
        return [namespace.logs(pod, "trainer") for pod in pods]

    wait_until(lambda: sum("runs" in text for text in logs()) == 2, "the program runs", 120)
    wait_until(lambda: fleet_is_ready(namespace), "the fleet passes", 240)
    pages = [
        (path, served(namespace, path, "accept")) for path in ("/", "/report.json", "/metrics")
    ]
    assert found_in(planted, in_the_pods(namespace)) == []
    assert list(files_on_the_nodes(since, list(planted), running=True)) == []
    for pod in namespace.objects("pods", "app.kubernetes.io/instance"):
        if pod["metadata"]["labels"]["app.kubernetes.io/instance"] != "accept":
            namespace.kubectl("exec", pod["metadata"]["name"], "--", "touch", "/tmp/end")
    wait_until(lambda: "program-failed" in namespace.why("run"), "the run failed", 120)
    why = [(f"kubectl runs why {name}", namespace.why(name)) for name in ("run", "grp")]
    texts = [*texts_of_objects(namespace), *texts_of_logs(namespace), *pages, *why]
    assert found_in(planted, iter(texts)) == []
    assert list(files_on_the_nodes(since, list(planted), running=False)) == []
