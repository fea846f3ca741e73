"""jobgen from, with manifests of each kind: the values are installed, and the program ends well on
two nodes.
"""

import pytest
import yaml

from tests.helpers.kube import API_VERSIONS, Namespace, jobgen, wait_until

# Kind -> its spec; `pod` is the pod of most of them.
MANIFESTS = """
pod: &torchrun {spec: {containers: [&container {name: main, image: IMAGE, command: &words [torchrun,
  --nnodes=2, --nproc_per_node=1, --rdzv-backend=c10d, /app/src/train.py],
  env: &env [{name: OMP_NUM_THREADS, value: '1'}],
  resources: {requests: {cpu: 100m, memory: 256Mi}}}]}}
PyTorchJob: {pytorchReplicaSpecs: {Master: &role {replicas: 1, template: {spec: {containers: [
  {<<: *container, command: [python3, -u, /app/src/train.py]}]}}}, Worker: *role}}
Job: {completions: 2, parallelism: 2, completionMode: Indexed, template: *torchrun}
JobSet: {replicatedJobs: [{name: w, replicas: 1, template: {spec: {parallelism: 2, completions: 2,
  template: *torchrun}}}]}
TrainJob: {runtimeRef: {name: torch-distributed}, trainer: {numNodes: 2, numProcPerNode: 1,
  image: IMAGE, command: *words, env: *env}}
StatefulSet: {replicas: 2, serviceName: old, selector: {}, template: *torchrun}
"""
KINDS = ("PyTorchJob", "Job", "JobSet", "TrainJob", "StatefulSet")
# As in the guides: the rank from the name of the pod, a pipe, and a torchrun amid other commands.
SCRIPT = """set -euo pipefail
NODE_RANK=${HOSTNAME##*-} # of a StatefulSet
torchrun --nnodes=2 --node_rank=$NODE_RANK --nproc_per_node=1 --master_addr=old-0.old --master_port=29500 \\
  /app/src/train.py 2>&1 | tee /tmp/log
grep -c "status=finished" /tmp/log | sed s/^/lines=/
"""


def manifests(image: str) -> dict[str, dict]:
    return yaml.safe_load(MANIFESTS.replace("IMAGE", image))


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.matrix if number else ())
        for number, kind in enumerate(KINDS)
    ],
)
def test_what_became_of_a_manifest_runs(namespace, kind):
    body = manifests(namespace.cluster.image)[kind]
    values = converted(kind, body)
    namespace.install("run", "job-group", values=values)

    logs_when_both(namespace, "status=finished")


def logs_when_both(space: Namespace, text: str) -> list[str]:
    """What both nodes print, once each has printed the text."""

    def logs():
        pods = space.objects("pods", "app.kubernetes.io/instance=run")
        found = [space.logs(each, "task") for each in pods if has_begun(each)]
        assert not any("[FATAL]" in log for log in found), found
        return found if len(found) == 2 and all(text in log for log in found) else []

    return wait_until(logs, "both nodes are done", 240)


def converted(kind: str, spec: dict) -> str:
    head = {"apiVersion": API_VERSIONS[kind], "kind": kind, "metadata": {"name": "old"}}
    return jobgen("from", "-", input=yaml.safe_dump(head | {"spec": spec}))


def test_a_script_of_a_stateful_set_runs_as_it_is(namespace):
    spec = manifests(namespace.cluster.image)["StatefulSet"]
    spec["template"]["spec"]["containers"][0]["command"] = ["bash", "-c", SCRIPT]
    namespace.install("run", "job-group", values=converted("StatefulSet", spec))
    logs = logs_when_both(namespace, "\nlines=")
    assert sorted(log.rpartition("\nlines=")[2].splitlines()[0] for log in logs) == ["1", "1"], logs


def has_begun(pod: dict) -> bool:
    states = pod.get("status", {}).get("containerStatuses", [])
    return any("running" in each["state"] or "terminated" in each["state"] for each in states)
