"""Objects of one run, as the API returns them, and the plan of the run that they contain."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cached_property

GROUP, RUN = "job-group", "ddp-run"
INDEX = "batch.kubernetes.io/job-completion-index"
ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"


@dataclass
class Snapshot:
    """Lists of objects; `logs` has the agents' output by pod, `unreadable` what the user may not read."""

    name: str
    configmaps: list[dict] = field(default_factory=list)
    jobsets: list[dict] = field(default_factory=list)
    jobs: list[dict] = field(default_factory=list)
    statefulsets: list[dict] = field(default_factory=list)
    pods: list[dict] = field(default_factory=list)
    workloads: list[dict] = field(default_factory=list)
    events: list[dict] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.configmaps or self.jobsets or self.jobs or self.statefulsets or self.pods)


@dataclass(frozen=True)
class Task:
    ranks: int
    primary: bool = True
    depends_on: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """One run: `id` is the name of its JobSet or the prefix of its Jobs, `owner` that JobSet, Job or StatefulSet."""

    chart: str
    name: str
    id: str
    tasks: dict[str, Task]
    plain_jobs: bool = False
    owner: dict | None = None

    @property
    def container(self) -> str:
        return "task" if self.chart == GROUP else "trainer"

    @property
    def ranks(self) -> list[str]:
        return [f"{name}-{rank}" for name, task in self.tasks.items() for rank in range(task.ranks)]

    @cached_property
    def jobs(self) -> dict[str, str]:
        """Names of the Jobs of a group, with the rank of each."""
        return {f"{self.id}-{rank}{'' if self.plain_jobs else '-0'}": rank for rank in self.ranks}

    def rank_in(self, name: str) -> str | None:
        """Return the rank to which the Job or pod of this name belongs."""
        if self.chart == GROUP:
            return self.jobs.get(name) or self.jobs.get(name.rpartition("-")[0])
        found = re.fullmatch(rf"{re.escape(self.id)}(?:-r-0)?-(\d+)(?:-[a-z0-9]+)?", name)
        return f"node-{found[1]}" if found else None


def plan(snapshot: Snapshot) -> Plan | None:
    """Return the newest run in the snapshot; None if it has none."""
    groups = [each for each in snapshot.configmaps if "group.json" in (each.get("data") or {})]
    if groups:
        newest = max(groups, key=lambda each: (not _deleted(each), _created(each)))
        return _group(snapshot, newest)
    owners = [*snapshot.jobsets, *snapshot.jobs, *snapshot.statefulsets]
    owners = [each for each in owners if labels(each).get("app.kubernetes.io/name") == RUN and "status" in each]
    if not owners:
        return None
    owner = max(owners, key=lambda each: (not _deleted(each), _created(each)))
    return Plan(RUN, snapshot.name, owner["metadata"]["name"], {"node": Task(_nodes(owner["spec"]))}, owner=owner)


def _group(snapshot: Snapshot, configmap: dict) -> Plan:
    data = json.loads(configmap["data"]["group.json"])
    tasks = {
        name: Task(task["numNodes"], task["primary"], task.get("dependsOn") or {})
        for name, task in data["tasks"].items()
    }
    name = configmap["metadata"]["name"]
    owner = next((each for each in snapshot.jobsets if each["metadata"]["name"] == name), None)
    return Plan(GROUP, snapshot.name, name, tasks, data["layout"] == "jobs", owner)


def _nodes(spec: dict) -> int:
    for each in spec.get("replicatedJobs", []):
        spec = each["template"]["spec"]
    return spec.get("completions") or spec.get("replicas") or 1


def pods_of(snapshot: Snapshot, run: Plan) -> dict[str, list[dict]]:
    """Return the pods of each rank of the run, the newest first."""
    found: dict[str, list[dict]] = {}
    for pod in snapshot.pods:
        if rank := rank_of(pod, run):
            found.setdefault(rank, []).append(pod)
    for pods in found.values():
        pods.sort(key=lambda each: (int(labels(each).get(ATTEMPT, 0)), _created(each)), reverse=True)
    return found


def rank_of(pod: dict, run: Plan) -> str | None:
    mine = labels(pod)
    if run.chart == GROUP:
        if mine.get("job-group/id") != run.id or "job-group/task" not in mine:
            return None
        return f"{mine['job-group/task']}-{mine['job-group/rank']}"
    if not pod["metadata"]["name"].startswith(f"{run.id}-"):
        return None
    index = mine.get(INDEX) or mine.get("apps.kubernetes.io/pod-index")
    return f"node-{index}" if index is not None else None


def labels(item: dict) -> dict[str, str]:
    return item["metadata"].get("labels") or {}


def condition(item: dict, kind: str) -> dict:
    """Return the condition of this type; empty if the object has none."""
    conditions = (item.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each.get("type") == kind), {})


def is_true(item: dict, kind: str) -> bool:
    return condition(item, kind).get("status") == "True"


def _created(item: dict) -> str:
    return item["metadata"].get("creationTimestamp") or ""


def _deleted(item: dict) -> bool:
    return bool(item["metadata"].get("deletionTimestamp"))
