"""A checked group as values of the chart job-group."""

from __future__ import annotations

from jobgen import resources
from jobgen.group import Group

SCHEMA_VERSION = 1


def convert(group: Group) -> dict:
    """Values for the chart. The group must have passed check()."""
    return {
        "name": group.header.name,
        "tasks": {task.name: _task(task.document.value) for task in group.tasks},
        "schemaVersion": SCHEMA_VERSION,  # last, and required by the chart: output that was cut off is refused
    }


def _task(task: dict) -> dict:
    given = task.get("resources", {})
    requests = {}
    if "cpus" in given:
        requests["cpu"] = resources.cpu_quantity(given["cpus"])
    if "memory" in given:
        requests["memory"] = resources.memory_quantity(given["memory"])
    values = {
        "numNodes": int(task.get("num_nodes", 1)),
        "image": resources.image(given["image_id"]) if "image_id" in given else None,
        "resources": {"requests": requests} if requests else None,
        "accelerator": resources.accelerator(given["accelerators"]) if "accelerators" in given else None,
        "env": {name: str(value) for name, value in task.get("envs", {}).items()},
        "setup": task.get("setup"),
        "run": task.get("run"),
    }
    return {key: value for key, value in values.items() if value}
