"""Runs of the three charts, found in the objects of a namespace."""

import json
import re
from dataclasses import dataclass, field
from functools import cached_property

Objects = dict[str, list[dict]]  # by kind

GROUP, RUN, ACCEPT = "job-group", "ddp-run", "gpu-accept"
CONTAINERS = {GROUP: "task", RUN: "trainer", ACCEPT: "accept"}
INSTANCE, CHART, PART = (f"app.kubernetes.io/{name}" for name in ("instance", "name", "component"))
INDEXES = ("batch.kubernetes.io/job-completion-index", "apps.kubernetes.io/pod-index")
ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"


@dataclass
class Rank:
    """One rank, or one node under test. `cause`: what it waits for, or why it ended; empty if
    neither.
    """

    name: str
    task: str
    phase: str = "missing"
    cause: str = ""
    detail: str = ""  # of the cause, as Kubernetes or the program wrote it
    lines: tuple[str, ...] = ()  # the last ones that it printed
    pod: str = ""
    node: str = ""
    gpus: int = 0
    exit_code: int | None = None
    started_at: str = ""
    ended_at: str = ""
    replaced: int = 0  # earlier pods of this rank that still exist
    primary: bool = True
    begun: bool = False  # its main container runs, or has run


@dataclass
class Run:
    """The newest run of a group or release. `id`: name of its JobSet, Job or StatefulSet, or the
    prefix of its Jobs.
    """

    chart: str
    name: str
    id: str
    owner: dict  # that object; the ConfigMap of a group of plain Jobs
    ranks: dict[str, Rank] = field(default_factory=dict)
    release: str = ""
    plain_jobs: bool = False
    pods: dict[str, list[dict]] = field(default_factory=dict)  # of each rank, the newest first
    page: dict = field(default_factory=dict)  # the pod of an acceptance that judges all nodes

    @cached_property
    def jobs(self) -> dict[str, str]:
        """Names of the Jobs of a group, with the rank of each."""
        return {f"{self.id}-{rank}{'' if self.plain_jobs else '-0'}": rank for rank in self.ranks}

    def newest(self, rank: str) -> dict:
        return (self.pods.get(rank) or [{}])[0]

    def rank_in(self, name: str) -> str | None:
        """The rank to which the Job or pod of this name belongs."""
        if self.chart == GROUP:
            return self.jobs.get(name) or self.jobs.get(name.rpartition("-")[0])
        found = re.fullmatch(rf"{re.escape(self.id)}(?:-r-0)?-(\d+)(?:-[a-z0-9]+)?", name)
        return f"node-{found[1]}" if found else None


def find(objects: Objects) -> list[Run]:
    """The newest run of each group and release of a namespace."""
    found: dict[tuple, dict] = {}
    for kind in ("configmaps", "jobsets", "jobs", "statefulsets", "daemonsets"):
        for item in objects[kind]:
            if name := _name_of_run(kind, item):
                key = (labels(item)[CHART], name)
                found[key] = max(found.get(key, item), item, key=created)
    return [_run(*key, found[key], objects) for key in sorted(found)]


def _name_of_run(kind: str, item: dict) -> str | None:
    mine = labels(item)
    chart = mine.get(CHART)
    if chart == GROUP:
        return mine.get("job-group/name") if "group.json" in (item.get("data") or {}) else None
    # A Job of no pods checks the template, and is there for a minute where no Helm deletes it.
    is_helper = kind == "configmaps" or PART in mine or "status" not in item
    is_helper |= item.get("spec", {}).get("completions") == 0
    return None if is_helper or chart not in (RUN, ACCEPT) else mine.get(INSTANCE)


def _run(chart: str, name: str, item: dict, objects: Objects) -> Run:
    run = Run(chart, name, item["metadata"]["name"], item, release=labels(item)[INSTANCE])
    if chart == GROUP:
        plan = json.loads(item["data"]["group.json"])
        run.plain_jobs = plan["workload"] == "jobs"
        run.owner = next(
            (each for each in objects["jobsets"] if each["metadata"]["name"] == run.id), item
        )
        for task, settings in plan["tasks"].items():
            for number in range(settings["numNodes"]):
                run.ranks[f"{task}-{number}"] = Rank(
                    f"{task}-{number}", task, primary=settings["primary"]
                )
    elif chart == RUN:
        spec = item["spec"]
        for each in spec.get("replicatedJobs", []):
            spec = each["template"]["spec"]
        for number in range(spec.get("completions") or spec.get("replicas") or 1):
            run.ranks[f"node-{number}"] = Rank(f"node-{number}", "node")
    for pod in objects["pods"]:
        if rank := _rank_of(pod, run):
            run.pods.setdefault(rank, []).append(pod)
    for rank, pods in run.pods.items():
        pods.sort(key=lambda each: (attempt([each]), created(each)), reverse=True)
        if chart == ACCEPT:
            run.ranks[rank] = Rank(rank, "node")
    if chart == ACCEPT:
        pages = [each for each in objects["pods"] if _part_of(each, run) == "fleet"]
        run.page = max(pages, key=created, default={})
        refused = (item.get("status") or {}).get("desiredNumberScheduled", 0) - len(run.ranks)
        for number, name in enumerate(_without_a_pod(run, refused)):
            run.ranks[name] = Rank(name, "node", cause="NoPod" if number < refused else "NoNode")
    return run


def _without_a_pod(run: Run, refused: int) -> list[str]:
    """Nodes that must report, as the page was told, and that no pod tests. `refused`: pods that the
    DaemonSet could not create.
    """
    containers = run.page.get("spec", {}).get("containers", [])
    told = dict(arg.split("=", 1) for each in containers for arg in each["args"] if "=" in arg)
    if names := told.get("--expect-names"):
        return [name for name in names.split(",") if name not in run.ranks]
    missing = max(int(told.get("--expect-nodes", 0)) - len(run.ranks), refused)
    return [f"no-node-{number}" for number in range(missing)]


def _rank_of(pod: dict, run: Run) -> str | None:
    mine, name = labels(pod), pod["metadata"]["name"]
    if run.chart == GROUP:
        found = mine.get("job-group/id") == run.id and "job-group/task" in mine
        return f"{mine['job-group/task']}-{mine['job-group/rank']}" if found else None
    if run.chart == ACCEPT:
        is_node = _part_of(pod, run) == "node"
        return (pod["spec"].get("nodeName") or name) if is_node else None
    index = next((mine[each] for each in INDEXES if each in mine), None)
    return f"node-{index}" if index is not None and name.startswith(f"{run.id}-") else None


def _part_of(pod: dict, run: Run) -> str:
    mine = labels(pod)
    ours = (mine.get(CHART), mine.get(INSTANCE)) == (run.chart, run.name)
    return mine.get(PART, "") if ours else ""


def attempt(pods: list[dict]) -> int:
    """Number of the JobSet's attempt to which the first of these pods belongs."""
    return int(labels(pods[0]).get(ATTEMPT, 0)) if pods else 0


def labels(item: dict) -> dict[str, str]:
    return item["metadata"].get("labels") or {}


def condition(item: dict, kind: str) -> dict:
    """The condition of this type; empty if the object has none."""
    conditions = (item.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each.get("type") == kind), {})


def is_true(item: dict, kind: str) -> bool:
    return condition(item, kind).get("status") == "True"


def created(item: dict) -> str:
    return item["metadata"].get("creationTimestamp") or ""
