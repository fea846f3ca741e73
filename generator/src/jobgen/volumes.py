"""The field volumes as values: existing claims, and volumes that are created for each pod."""

from __future__ import annotations

from collections import Counter

from jobgen.diagnostics import REFUSAL
from jobgen.group import Group, GroupDocument
from jobgen.quantities import quantity


def claims(group: Group) -> Counter[str]:
    """Return how many nodes of the group mount each existing claim."""
    nodes: Counter[str] = Counter()
    for task in group.tasks:
        given = task.fields.get("volumes", {}).values()
        for name in {_claim(each) for each in given} - {None}:
            nodes[str(name)] += task.fields.get("num_nodes", 1)
    return nodes


def _claim(given: str | dict) -> str | None:
    return given if isinstance(given, str) else given.get("name") if "size" not in given else None


def convert(task: GroupDocument, nodes: Counter[str]) -> list[dict]:
    volumes = task.fields.get("volumes", {}).items()
    return [
        _volume(task, path, given, nodes)
        for path, given in volumes
        if not task.has_unresolved_variable(("volumes", path))
    ]


def _volume(task: GroupDocument, mount_path: str, given: str | dict, nodes: Counter[str]) -> dict:
    path = ("volumes", mount_path)
    if isinstance(given, dict) and "size" in given:
        if task.fields.get("num_nodes", 1) > 1:
            message = "not supported: a volume with a size belongs to one pod, and this task has several. "
            message += "Name an existing ReadWriteMany claim, or give each pod its own with --lenient"
            task.report("volume-of-one-node", path, message, REFUSAL, fallback="each pod gets its own")
        return _ephemeral(mount_path, given)
    name = given if isinstance(given, str) else given["name"]
    note = f'the PersistentVolumeClaim "{name}" must exist in the namespace of the release'
    task.note(path, f"{note}, as ReadWriteMany, because several nodes mount it" if nodes[name] > 1 else note)
    volume = {"mountPath": mount_path, "claimName": name}
    if isinstance(given, dict) and "sub_path" in given:
        volume["subPath"] = given["sub_path"]
    return volume


def _ephemeral(mount_path: str, given: dict) -> dict:
    config = given.get("config", {})
    volume = {
        "mountPath": mount_path,
        "size": quantity(given["size"], "gi"),
        "storageClassName": config.get("storage_class_name"),
        "accessMode": config.get("access_mode"),
        "labels": given.get("labels"),
    }
    return {key: value for key, value in volume.items() if value}
