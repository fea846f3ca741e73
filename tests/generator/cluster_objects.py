"""Objects of a run as a cluster has them: the chart's own output, with the pods and statuses that
controllers add.
"""

from __future__ import annotations

import copy
import functools
import json

import yaml

from kubectl_runs.judge import Status, judge
from kubectl_runs.kubectl import KINDS, REASONS
from kubectl_runs.runs import find
from tests.helpers.rendering import objects, output

NOW = "2026-11-01T10:00:00Z"
LATER = "2026-11-01T10:07:00Z"
GROUP = yaml.safe_load("""
schemaVersion: 1
name: rl
tasks:
  learner: {numNodes: 2, run: train}
  buffer: {run: serve}
  eval: {run: score, dependsOn: {buffer: started}}
primaryTasks: [learner]
""")
RUN = {"nodes": 3}


@functools.cache
def rendered(chart: str, values: str) -> str:
    return output("helm", chart, values.encode(), "--namespace", "ns", release="rl")


def cluster(chart: str = "job-group", **values) -> Cluster:
    base = {"job-group": GROUP, "ddp-run": RUN}.get(chart, {})
    return Cluster(
        chart, copy.deepcopy(objects(rendered(chart, yaml.safe_dump({**base, **values}))))
    )


def about(name: str) -> dict[str, str]:
    return {"name": name, "namespace": "ns", "creationTimestamp": NOW}


class Cluster:
    """A run whose pods all run; tests change single objects."""

    def __init__(self, chart: str, manifests: list[dict]):
        self.container = "task" if chart == "job-group" else "trainer"
        self.objects: dict[str, list[dict]] = {kind: [] for kind in (*KINDS, *REASONS)}
        for each in manifests:
            if each["kind"] == "Deployment":
                self.pages = [{"kind": "Pod", **each["spec"]["template"]}]
            if (kind := f"{each['kind']}s".lower()) in KINDS:
                each["metadata"] |= {"creationTimestamp": NOW, "namespace": "ns"}
                each |= {"status": {}} if kind != "configmaps" else {}
                self.objects[kind].append(each)
        for jobset in self.objects["jobsets"]:
            self.objects["children"] += [
                self._job(jobset, each) for each in jobset["spec"]["replicatedJobs"]
            ]
        self.pods: dict[str, dict] = {}
        for owner in [
            *self.objects["children"],
            *self.objects["jobs"],
            *self.objects["statefulsets"],
        ]:
            count = owner["spec"].get("completions") or owner["spec"].get("replicas") or 1
            for index in range(count):
                self._pod(owner, index)
        self.objects["pods"] = list(self.pods.values())

    @property
    def owner(self) -> dict:
        return next(
            self.objects[kind][0]
            for kind in ("jobsets", "statefulsets", "jobs")
            if self.objects[kind]
        )

    @property
    def run_id(self) -> str:
        return find(self.objects)[0].id

    def judged(self) -> Status:
        (run,) = find(self.objects)
        return judge(run, self.objects)

    def job(self, rank: str) -> dict:
        return next(
            each
            for each in self.objects["children"] + self.objects["jobs"]
            if rank in each["metadata"]["name"]
        )

    def _job(self, jobset: dict, replicated: dict) -> dict:
        name = f"{jobset['metadata']['name']}-{replicated['name']}-0"
        labels = {"jobset.sigs.k8s.io/jobset-name": jobset["metadata"]["name"]}
        spec = copy.deepcopy(replicated["template"]["spec"])
        metadata = about(name) | {"labels": labels}
        return {"kind": "Job", "metadata": metadata, "spec": spec, "status": {}}

    def _pod(self, owner: dict, index: int):
        found = copy.deepcopy(owner["spec"]["template"])
        labels = found["metadata"].setdefault("labels", {})
        name = owner["metadata"]["name"]
        if owner["kind"] == "StatefulSet":
            labels["apps.kubernetes.io/pod-index"] = str(index)
            name += f"-{index}"
        elif owner["spec"].get("completionMode") == "Indexed":
            labels["batch.kubernetes.io/job-completion-index"] = str(index)
            name += f"-{index}-x7k2p"
        else:
            name += "-x7k2p"
        if "jobset.sigs.k8s.io/jobset-name" in owner["metadata"].get("labels", {}):
            labels["jobset.sigs.k8s.io/restart-attempt"] = "0"
        rank = (
            f"{labels['job-group/task']}-{labels['job-group/rank']}"
            if "job-group/task" in labels
            else f"node-{index}"
        )
        found["metadata"] |= about(name)
        self.pods[rank] = {"kind": "Pod", **found}
        self.running(rank)

    # -- states of a pod

    def scheduled(self, rank: str, **status) -> dict:
        pod = self.pods[rank]
        pod["spec"]["nodeName"] = f"gpu-{sorted(self.pods).index(rank)}"
        pod["status"] = {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "True"}],
            **status,
        }
        return pod

    def main(self, rank: str, state: dict, ready: bool = False, phase: str = "Running") -> dict:
        pod = self.scheduled(rank, phase=phase)
        pod["status"]["conditions"] += [
            {"type": kind, "status": str(ready)} for kind in ("ContainersReady", "Ready")
        ]
        init = [
            {"name": each["name"], "state": {"running": {}}}
            for each in pod["spec"].get("initContainers", [])
        ]
        pod["status"]["initContainerStatuses"] = init
        pod["status"]["containerStatuses"] = [
            {"name": self.container, "ready": ready, "state": state}
        ]
        return pod

    def running(self, rank: str) -> dict:
        return self.main(rank, {"running": {"startedAt": NOW}}, ready=True)

    def waiting(self, rank: str, reason: str, message: str = "") -> dict:
        return self.main(rank, {"waiting": {"reason": reason, "message": message}}, phase="Pending")

    def ended(
        self, rank: str, code: int, message: str = "", at: str = LATER, reason: str = ""
    ) -> dict:
        ended = {"exitCode": code, "message": message, "finishedAt": at, "startedAt": NOW}
        ended["reason"] = reason or ("Completed" if code == 0 else "Error")
        return self.main(rank, {"terminated": ended}, phase="Failed" if code else "Succeeded")

    def accepted(self, node: str, code: int, message: str):
        """A pod of gpu-accept whose tests have ended."""
        owner = self.objects["daemonsets"][0]
        pod = {"kind": "Pod", **copy.deepcopy(owner["spec"]["template"])}
        pod["metadata"] |= about(f"rl-gpu-accept-{node}")
        pod["spec"]["nodeName"] = node
        ended = {"exitCode": code, "message": message, "startedAt": NOW, "finishedAt": LATER}
        statuses = [{"name": "accept", "state": {"terminated": ended}}]
        pod["status"] = {"phase": "Pending", "initContainerStatuses": statuses}
        self.objects["pods"].append(pod)

    def page(self, ready: bool):
        """The pod of gpu-accept that judges all nodes."""
        (pod,) = self.pages
        pod["metadata"] |= about("rl-gpu-accept-fleet-x7k2p")
        pod["status"] = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": str(ready)}],
        }
        self.objects["pods"].append(pod)

    def unscheduled(self, rank: str, reason: str, message: str = "") -> dict:
        pod = self.pods[rank]
        pod["spec"].pop("nodeName", None)
        condition = {"type": "PodScheduled", "status": "False"}
        condition |= {"reason": reason, "message": message}
        pod["status"] = {"phase": "Pending", "conditions": [condition]}
        return pod

    def removed(self, rank: str):
        self.objects["pods"].remove(self.pods.pop(rank))

    def disrupted(self, rank: str, reason: str, message: str = "") -> dict:
        pod = self.pods[rank]
        pod["metadata"]["deletionTimestamp"] = LATER
        pod["status"]["conditions"].append(
            {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
        )
        return pod

    def event(self, name: str, reason: str, message: str):
        self.objects["events"].append(
            {
                "metadata": {"namespace": "ns"},
                "type": "Warning",
                "reason": reason,
                "message": message,
                "involvedObject": {"name": name},
            }
        )

    def grow(self, task: str, count: int):
        """Give a task more ranks, each a copy of rank 0."""
        plan = next(
            each["data"] for each in self.objects["configmaps"] if "group.json" in each["data"]
        )
        group = json.loads(plan["group.json"])
        for rank in range(group["tasks"][task]["numNodes"], count):
            pod = copy.deepcopy(self.pods[f"{task}-0"])
            pod["metadata"]["name"] = pod["metadata"]["name"].replace(
                f"-{task}-0-", f"-{task}-{rank}-"
            )
            pod["metadata"]["labels"]["job-group/rank"] = str(rank)
            self.pods[f"{task}-{rank}"] = pod
            self.objects["pods"].append(pod)
        group["tasks"][task]["numNodes"] = count
        plan["group.json"] = json.dumps(group)

    def condition(self, item: dict, kind: str, reason: str = "", message: str = ""):
        found = {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": LATER,
        }
        item["status"].setdefault("conditions", []).append(found)

    def copy(self) -> Cluster:
        return copy.deepcopy(self)
