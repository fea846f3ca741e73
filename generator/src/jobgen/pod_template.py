"""The field config.kubernetes: the pod template of a task, and the queue and barrier of the
group.
"""

import math
import re

from jobgen.contract import ACCEPTS
from jobgen.diagnostics import Path, walk
from jobgen.group import Group, GroupDocument
from jobgen.resources import kube_context

SPEC = ("config", "kubernetes", "pod_config", "spec")


def kubernetes(task: GroupDocument) -> dict:
    return task.fields.get("config", {}).get("kubernetes", {})


def container_of(spec: dict) -> dict:
    return (spec.get("containers") or [{}])[0]


def convert(task: GroupDocument, pod: dict) -> dict:
    """Return the value podTemplate: `pod`, then custom_metadata, then pod_config on top."""
    given = kubernetes(task)
    config = given.get("pod_config", {})
    for metadata in (given.get("custom_metadata", {}), config.get("metadata", {})):
        for key, values in metadata.items():
            if values:
                pod.setdefault("metadata", {}).setdefault(key, {}).update(values)
    if spec := config.get("spec"):
        for path, value in walk(spec, SPEC):
            if isinstance(value, (int, float)) and not (
                math.isfinite(value) and abs(value) < 2**63
            ):
                task.report("bad-value", path, "is not a number that Kubernetes accepts")
        _check_container(task, spec)
        pod["spec"] = {**pod.get("spec", {}), **spec}
    return {key: pod[key] for key in ("metadata", "spec") if pod.get(key)}


def _check_container(task: GroupDocument, spec: dict) -> None:
    """Report what the chart would refuse, or not use."""
    container, path = container_of(spec), (*SPEC, "containers", 0)
    if container.get("workingDir"):
        task.note(
            (*path, "workingDir"), "no effect: setup and run start in ~/sky_workdir", "no-effect"
        )
    seen: set[str] = set()
    for index, each in enumerate(container.get("env") or []):
        place, name = (*path, "env", index), each.get("name")
        words, pattern = ACCEPTS.get(name, ("", ".*"))
        if "value" in each and not re.fullmatch(pattern, str(each["value"]), re.DOTALL):
            task.report("bad-value", (*place, "value"), f"must be {words}")
        if name in seen:
            task.report("conflicting-fields", place, "another entry has the same name")
        seen.add(name)
    volumes = {each.get("name") for each in spec.get("volumes") or []}
    for index, mount in enumerate(container.get("volumeMounts") or []):
        if mount.get("name") not in volumes:
            message = "mounts a volume that pod_config.spec.volumes does not have"
            task.report("bad-value", (*path, "volumeMounts", index), message)


def queue_name(group: Group) -> str | None:
    """Return the one queue that the tasks name."""
    return _one(
        group,
        ("config", "kubernetes", "kueue", "local_queue_name"),
        lambda task: kubernetes(task).get("kueue", {}).get("local_queue_name"),
        "queue; a group is admitted as a whole",
    )


def check_context(group: Group) -> None:
    _one(
        group,
        ("resources", "infra"),
        lambda task: kube_context(task.fields.get("resources", {})),
        "context; a group runs on one cluster",
    )


def _one(group: Group, path: Path, value_of, what: str) -> str | None:
    first = None
    for task in group.tasks:
        value = value_of(task)
        if value is not None and first is not None and value != first[1]:
            task.report("conflicting-fields", path, f'task "{first[0]}" names a different {what}')
        elif value is not None:
            first = first or (task.name, value)
    return first[1] if first else None


def barrier_seconds(group: Group) -> int | None:
    """Return the longest provision_timeout of the tasks."""
    given = [kubernetes(task).get("provision_timeout") for task in group.tasks]
    return max((max(1, each) for each in given if each is not None), default=None)
