"""The field config.kubernetes: the pod template of a task, and the queue and barrier of the group."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from jobgen import pod_security
from jobgen.alternatives import kube_context
from jobgen.contract import ACCEPTS, SHARED_MEMORY_MOUNT
from jobgen.diagnostics import Path
from jobgen.group import Group, GroupDocument
from jobgen.names import is_reserved_mount

_SPEC = ("config", "kubernetes", "pod_config", "spec")


def kubernetes(task: GroupDocument) -> dict:
    return task.fields.get("config", {}).get("kubernetes", {})


def convert(task: GroupDocument, pod: dict) -> dict:
    """Return the value podTemplate: `pod`, then custom_metadata, then pod_config on top."""
    given = kubernetes(task)
    config = given.get("pod_config", {})
    for metadata in (given.get("custom_metadata", {}), config.get("metadata", {})):
        for key, values in metadata.items():
            if values:
                pod.setdefault("metadata", {}).setdefault(key, {}).update(values)
    if spec := config.get("spec"):
        for path in _not_json(spec, _SPEC):
            task.report("bad-value", path, "is not a number that Kubernetes accepts")
        pod_security.check(task, spec, _SPEC)
        _check_container(task, spec)
        pod["spec"] = {**pod.get("spec", {}), **spec}
    return {key: pod[key] for key in ("metadata", "spec") if pod.get(key)}


def _check_container(task: GroupDocument, spec: dict) -> None:
    """Report what the chart would refuse, or not use."""
    container, path = (spec.get("containers") or [{}])[0], (*_SPEC, "containers", 0)
    if container.get("workingDir"):
        task.note((*path, "workingDir"), "no effect: setup and run start in ~/sky_workdir", "no-effect")
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
    taken = set()
    for index, mount in enumerate(container.get("volumeMounts") or []):
        place = (*path, "volumeMounts", index)
        if mount.get("name") not in volumes:
            task.report("bad-value", place, "mounts a volume that pod_config.spec.volumes does not have")
        target = mount.get("mountPath", "")
        if is_reserved_mount(target) and target.rstrip("/") != SHARED_MEMORY_MOUNT:
            task.report("same-path", place, "the pod uses this path itself; choose another one")
        if target in taken:
            task.report("same-path", place, "another entry has the same mountPath")
        taken.add(target)


def _not_json(value: object, path: Path) -> Iterator[Path]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _not_json(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _not_json(item, (*path, index))
    elif isinstance(value, (int, float)) and not (math.isfinite(value) and abs(value) < 2**63):
        yield path


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
    longest = None
    for task in group.tasks:
        seconds = kubernetes(task).get("provision_timeout")
        if seconds == -1:
            message = "the barrier always has a time limit; "
            message += "set the chart's value barrier.timeoutSeconds as high as you need"
            task.note(("config", "kubernetes", "provision_timeout"), message)
        elif seconds is not None:
            longest = max(longest or 1, seconds)
    return longest
