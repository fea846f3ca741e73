"""Conversion of a group to values of the chart job-group.

The values are dictionaries: their type is the chart's values.schema.json, against which tests
validate them.
"""

import json
import os
import posixpath
import re

from jobgen import envs, pod_template, resources, volumes
from jobgen.contract import (
    DELAY_LIMIT_SECONDS,
    KUEUE_POD_SETS,
    SHARED_MEMORY_MOUNT,
    VALUES_SCHEMA_VERSION,
)
from jobgen.diagnostics import quoted
from jobgen.files import WORKDIR, FileSets
from jobgen.group import Group, GroupDocument
from jobgen.names import is_label, is_reserved_mount
from jobgen.schema import did_you_mean

SKY_CONFIG = "~/.sky/config.yaml"
DEFAULTS = (
    "defaults differ from SkyPilot's: programs run as an unnamed user and not as root, in the"
    " chart's image without image_id, and request only the cpus and memory that the file names"
)
MOST_JOBS = 100  # of a JobSet: with some 140 small ones, etcd would not store it
RANK_BYTES = 4_500  # of a rank in a JobSet, without the task's own values
JOBSET_BYTES = 650_000  # of a JobSet, which takes 2.2 times as much in etcd
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def needs_jobs(tasks: dict, queue: object) -> str | None:
    """Why only `workload: jobs` can run the tasks; None if a JobSet can."""
    ranks = sum(each.get("numNodes", 1) for each in tasks.values())
    pods = (
        {key: value for key, value in each.items() if key not in ("run", "setup")}
        for each in tasks.values()
    )
    size = sum(each.get("numNodes", 1) * (RANK_BYTES + len(json.dumps(each))) for each in pods)
    if ranks <= (KUEUE_POD_SETS if queue else MOST_JOBS) and size <= JOBSET_BYTES:
        return None
    limits = f"a JobSet holds {MOST_JOBS} small ones, or {KUEUE_POD_SETS} with Kueue"
    reason = f"{ranks} ranks, and {limits}: the values have workload: jobs"
    return f"{reason}, without restarts of the whole group"


def convert(group: Group, files: FileSets) -> dict:
    """Return values for the chart; they are valid if no document reports an error."""
    header = group.header.fields
    delays = _delays(group)
    for name, path in (
        (".sky.yaml", f"{files.options.folder or '.'}/.sky.yaml"),
        (SKY_CONFIG, os.path.expanduser(SKY_CONFIG)),
    ):
        if os.path.exists(path):
            message = (
                f"{name} is not read, which SkyPilot merges into every task: write what the "
                f"group needs of it"
            )
            group.header.note(
                (), f"{message}, such as kubernetes, into the tasks' `config`", "sky-config"
            )
    tasks = {}
    for task in group.tasks:
        values = _task(task, files, delays)
        if values.get("launcher") == "ddp-launch" and header.get("inter_connection") is False:
            message = "ddp-launch needs the names of the ranks, and inter_connection is false"
            task.report(
                "conflicting-fields", ("launcher",) if "launcher" in task.fields else (), message
            )
        if "name" in task.fields:
            tasks[task.fields["name"]] = values
    files.check_size(group.header)
    if group.is_valid:
        group.header.note(("name",), DEFAULTS, "default-differs")
    pod_template.check_context(group)
    queue = pod_template.queue_name(group)
    barrier = pod_template.barrier_seconds(group)
    name = header.get("name")
    reason = needs_jobs(tasks, queue)
    if reason and group.is_valid:
        group.header.note(("name",), reason, "workload-jobs")
        for task in (each for each in group.tasks if each.fields.get("num_nodes", 1) > 1):
            if tasks[task.fields["name"]].get("recovery"):
                message = "a task of several nodes restarts as a whole, which takes a JobSet; "
                message += "remove it, or use fewer ranks"
                task.report("conflicting-fields", ("resources", "job_recovery"), message)
    values = {
        "name": name,
        "workload": "jobs" if reason else None,
        "primaryTasks": _primary_tasks(group, tasks),
        "interConnection": False if header.get("inter_connection") is False else None,
        "kueue": {"queueName": queue} if queue else None,
        "timeouts": {"joinSeconds": barrier} if barrier else None,
        "secretName": _secret_name(group, f"{name}-secrets", tasks),
        "files": files.sets,
        "tasks": tasks,
        # last, and required by the chart: truncated output is refused
        "schemaVersion": VALUES_SCHEMA_VERSION,
    }
    return {key: value for key, value in values.items() if value not in (None, [], {})}


def _task(
    task: GroupDocument,
    files: FileSets,
    delays: dict[str, int],
) -> dict:
    pod: dict = {}
    given = resources.convert(task, pod)
    template = pod_template.convert(task, pod)
    mounted, mounts, workdir = volumes.convert(task), files.mounts(task), files.workdir(task)
    _check_mounts(task, template, workdir is not None)
    values = {
        "numNodes": task.fields.get("num_nodes", 1),
        "image": given.get("image"),
        "launcher": task.options.launcher or task.fields.get("launcher"),
        "resources": given.get("resources"),
        "accelerator": given.get("accelerator"),
        "env": envs.env(task),
        "secrets": envs.secrets(task),
        "volumes": mounted,
        "fileMounts": mounts,
        "workdir": workdir,
        "terminationDelaySeconds": delays.get(task.fields.get("name")),
        "recovery": given.get("recovery"),
        "podTemplate": template,
        "setup": task.fields.get("setup"),
    }
    values = {key: value for key, value in values.items() if value}
    return values | {"run": task.fields.get("run", "")}  # the chart requires it of every task


def _check_mounts(task: GroupDocument, template: dict, workdir: bool) -> None:
    """Report mount paths that are used twice, or that the pod uses itself."""
    taken = {WORKDIR: "workdir"} if workdir else {}
    fields = ("volumes", "file_mounts")
    places = [
        ((field, target), target) for field in fields for target in task.fields.get(field, {})
    ]
    mounts = pod_template.container_of(template.get("spec", {})).get("volumeMounts") or []
    own = (*pod_template.SPEC, "containers", 0, "volumeMounts")
    places += [((*own, index), each.get("mountPath", "")) for index, each in enumerate(mounts)]
    for path, target in places:
        place = posixpath.normpath(target)
        if place in taken:
            message = f"{taken[place]} is already mounted at this path"
            task.report("same-path", path, message, key=True)
        elif is_reserved_mount(place) and (path[0] in fields or place != SHARED_MEMORY_MOUNT):
            message = "the pod uses this path itself; choose another one"
            task.report("same-path", path, message, key=True)
        taken.setdefault(place, f"another entry of {path[0]}")


def _primary_tasks(group: Group, known: dict[str, dict]) -> list[str]:
    given = group.header.fields.get("primary_tasks", [])
    unknown = [each for each in enumerate(given) if each[1] not in known]
    _unknown_tasks(group, "primary_tasks", known, unknown)
    return list(dict.fromkeys(given))


def _unknown_tasks(
    group: Group, field: str, known: dict, unknown: list[tuple[str | int, str]]
) -> None:
    """Report names without a task; `unknown` has (last part of the path, name) of each."""
    shown = [name if is_label(name) else quoted(name) for name in list(known)[:20]]
    available = ", ".join(shown) + (", ..." if len(known) > len(shown) else "")
    for last, name in unknown:
        hint = did_you_mean(name, known, len(unknown))
        message = f"no task has this name{hint}; available: {available}"
        group.header.report("unknown-task", (field, last), message, key=isinstance(last, str))


def _delays(group: Group) -> dict[str, int]:
    """Return the termination delay of each task, in seconds."""
    given = group.header.fields.get("termination_delay")
    if given is None:
        return {}
    known = dict.fromkeys(task.fields["name"] for task in group.tasks if "name" in task.fields)
    if not group.header.fields.get("primary_tasks"):
        message = "has no effect: without primary_tasks all tasks are primary, and the group ends "
        message += "when all of them are done"
        group.header.note(("termination_delay",), message, "no-effect")
    if not isinstance(given, dict):
        given = {"default": given}
    names = {**known, "default": None}
    _unknown_tasks(
        group, "termination_delay", names, [(name, name) for name in given if name not in names]
    )
    delays = {name: _duration(given.get(name, given.get("default", 0))) for name in known}
    if any(delay > DELAY_LIMIT_SECONDS for delay in delays.values()):
        group.header.note(("termination_delay",), "a delay of more than a year is cut to a year")
    return {name: min(delay, DELAY_LIMIT_SECONDS) for name, delay in delays.items()}


def _duration(given: str | int) -> int:
    """90, "90", "90s", "2m" -> seconds."""
    match = re.fullmatch(r"([0-9]+)([smhdw]?)", str(given).lower())
    return int(match[1]) * _SECONDS[match[2] or "s"]


def _secret_name(group: Group, name: str, tasks: dict[str, dict]) -> str | None:
    """Return the Secret's name if a task needs it, and add a note with the command that creates
    it.
    """
    users = [task for task in group.tasks if tasks.get(task.fields.get("name"), {}).get("secrets")]
    if not users:
        return None
    keys = dict.fromkeys(key for task in users for key in tasks[task.fields["name"]]["secrets"])
    # kubectl reads the value of a name without "=" from the environment, so that it is not an
    # argument of a process.
    command = (
        f"printf '%s\\n' {' '.join(keys)} | kubectl create secret generic {name} "
        f"--from-env-file=/dev/stdin"
    )
    users[0].note(
        ("secrets",),
        f"export the variables, and create the Secret before you install: {command}",
        "secret-needed",
    )
    return name
