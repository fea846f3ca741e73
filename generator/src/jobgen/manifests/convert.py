"""Conversion of a file with one manifest to values of the chart job-group."""

import re
import shlex
from collections.abc import Callable, Sequence

from jobgen import leaks, names
from jobgen.api import Result
from jobgen.contract import VALUES_SCHEMA_VERSION
from jobgen.convert import needs_jobs
from jobgen.diagnostics import InvalidInputError, Path
from jobgen.manifests.manifest import Manifest, get
from jobgen.manifests.pods import read_container, read_task
from jobgen.yaml_loader import Document, load
from jobgen.yaml_writer import dump

OF_THE_SERVER = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "managedFields",
    "selfLink",
)
# Kueue's label -> its value of the chart.
QUEUE = {"queue-name": "queueName", "priority-class": "priorityClass"}
OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def to_values(
    source: bytes,
    name: str | None = None,
    allow: frozenset[str] = frozenset(),
    command: Sequence[str] = (),
) -> Result:
    """Values for the one object of a known kind, with notes about what they lose.

    `name` replaces that of the object; `allow`: variables and paths that look like credentials;
    `command`: that of containers without one.
    """
    try:
        documents = [each for each in load(source) if isinstance(each.value, dict)]
        found = [each for each in documents if _is_known(each.value)]
        if len(found) != 1:
            raise _no_object(documents, len(found))
    except InvalidInputError as invalid:
        return Result(None, [invalid.diagnostic])
    manifest = Manifest(found[0], command)
    for each in documents:
        if each is not found[0]:
            other = Manifest(each)
            other.note(("kind",), "another object of the file")
            manifest.diagnostics += other.diagnostics
    if not isinstance(manifest.value.get("spec"), dict):
        manifest.error((), "has no spec")
    manifest.check_filled_in()
    own = names.label(str(get(manifest.value, ("metadata", "name")) or ""), "group")
    name = name or own or "group"
    if error := names.label_error(name):
        manifest.error(("metadata", "name"), error)
    values = group(manifest, name) if manifest.is_valid else {}
    leaks.check(manifest, manifest.value, allow)
    about = f" from a {manifest.value['kind']}. Yours to edit."
    text = dump(values, about) if manifest.is_valid else None
    return Result(text, sorted({*manifest.diagnostics}))


def _is_known(value: dict) -> bool:
    group, _ = KINDS.get(str(value.get("kind")), ("a kind of no group", None))
    return str(value.get("apiVersion")).startswith(group)


def _no_object(documents: list[Document], count: int) -> InvalidInputError:
    position = documents[0].position(()) if documents else (1, 1)
    known = ", ".join(f"{kind} ({group}…)" for kind, (group, _) in KINDS.items())
    message = f"has {count or 'none'} of the objects that it reads, and it takes one of: {known}"
    if not count:
        message += "; `jobgen to-values` reads a job group"
    return InvalidInputError(position, "not-convertible", message, "manifest", "$")


def group(manifest: Manifest, name: str) -> dict:
    """The values, which are valid if the manifest has no error."""
    kind = manifest.value["kind"]
    tasks = KINDS[kind][1](manifest, name)
    # So that the pods of a StatefulSet keep their names: NAME-0.SERVICE.
    service = manifest.take("spec", "serviceName", default="") if kind == "StatefulSet" else ""
    values: dict = {"name": names.label(service, "group") or name}
    if [*tasks] == [name] and names.too_long(values["name"], name, tasks[name]["numNodes"]):
        tasks = {"node": tasks[name]}
        message = "too long for the names of pods, which are node-RANK in place of NAME-RANK"
        manifest.note(("metadata", "name"), message)
    for task, each in tasks.items():
        if reason := names.too_long(values["name"], task, each["numNodes"]):
            manifest.error(("metadata", "name"), f"{reason}; shorten it, or pass --name")
    limits = ("spec", "runPolicy") if kind == "PyTorchJob" else ("spec",)
    for limit in ("activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        if manifest.has(*limits, limit):
            values[limit] = manifest.take(*limits, limit, default=0)
    if queue := read_metadata(manifest):
        values["kueue"] = queue
    if reason := needs_jobs(tasks, queue):
        values["workload"] = "jobs"
        manifest.note(("spec",), reason)
        for each in tasks.values():
            if each["numNodes"] > 1:
                each.pop("recovery", None)
    manifest.note_rest()
    # Last, and required by the chart: truncated output is refused.
    return values | {"tasks": tasks, "schemaVersion": VALUES_SCHEMA_VERSION}


def read_metadata(manifest: Manifest) -> dict:
    """Queue and priority as values of Kueue; the namespace as a note."""
    for key in ("apiVersion", "kind", "status"):
        manifest.drop(key)
    for key in ("name", *OF_THE_SERVER):
        manifest.drop("metadata", key)
    if namespace := manifest.take("metadata", "namespace", default=""):
        manifest.note(
            ("metadata", "namespace"), f"install with --namespace {shlex.quote(namespace)}"
        )
    found = {}
    for label, value in QUEUE.items():
        path = "metadata", "labels", f"kueue.x-k8s.io/{label}"
        if given := manifest.take(*path, default=""):
            found[value] = given
            if not OBJECT_NAME.fullmatch(given):
                manifest.error(path, "is no name of an object")
    if found.keys() == {"priorityClass"}:
        manifest.note(path, "has no effect without a queue")
        return {}
    return found


def nodes_of(manifest: Manifest, spec: Path) -> int:
    """How many pods a Job has; they must run together."""
    manifest.drop(*spec, "completionMode")
    parallel = manifest.count(*spec, "parallelism")
    if not manifest.has(*spec, "completions"):
        return parallel
    nodes = manifest.count(*spec, "completions")
    if nodes != parallel:
        message = (
            f"{nodes} pods, of which {parallel} run at a time: no pods of one run, which "
            f"all start together"
        )
        manifest.error((*spec, "completions"), message)
    return nodes


def job(manifest: Manifest, name: str) -> dict:
    return {name: read_task(manifest, ("spec", "template"), nodes_of(manifest, ("spec",)))}


def stateful_set(manifest: Manifest, name: str) -> dict:
    manifest.drop("spec", "selector")
    manifest.drop("spec", "podManagementPolicy")
    manifest.note(
        ("kind",), "a group ends when its program has ended; a StatefulSet starts it again"
    )
    return {name: read_task(manifest, ("spec", "template"), manifest.count("spec", "replicas"))}


def py_torch_job(manifest: Manifest, name: str) -> dict:
    """Master and Worker become equal nodes. Where they differ, the Worker's pod is taken: it has
    the GPUs.
    """
    roles = ("spec", "pytorchReplicaSpecs")
    kinds = [kind for kind in ("Master", "Worker") if manifest.has(*roles, kind)]
    if not kinds:
        manifest.error(("spec",), "has neither Master nor Worker")
        return {}
    nodes = sum(manifest.count(*roles, kind, "replicas") for kind in kinds)
    if kinds[1:]:
        master = manifest.take(*roles, "Master", "template", default={})
        if master != get(manifest.value, (*roles, "Worker", "template")):
            message = "its pod differs, and all nodes are alike; Worker's is taken"
            manifest.note((*roles, "Master", "template"), message)
    task = read_task(manifest, (*roles, kinds[-1], "template"), nodes, "pytorch")
    # As the operator does for a plain program.
    task["run"] = f'export WORLD_SIZE="${{WORLD_SIZE:-$NNODES}}"\n{task["run"]}'
    return {name: task | processes(manifest, "spec", "nprocPerNode")}


def processes(manifest: Manifest, *path: str) -> dict:
    """The processes per node as a variable; none for a word such as auto, which is the chart's
    default.
    """
    given = get(manifest.value, path)
    manifest.drop(*path)
    return (
        {"env": {"NPROC_PER_NODE": str(given)}}
        if str(given).isdecimal() and int(str(given))
        else {}
    )


def train_job(manifest: Manifest, name: str) -> dict:
    path = ("spec", "trainer")
    keys = {"image": "", "command": [], "args": [], "env": [], "resourcesPerNode": {}}
    taken = {key: manifest.take(*path, key, default=kind) for key, kind in keys.items()}
    taken["resources"] = taken.pop("resourcesPerNode")
    container = {key: each for key, each in taken.items() if each}
    if "image" not in container:
        manifest.note(path, "the runtime has the image; set image of the task")
    nodes = manifest.count(*path, "numNodes")
    if not manifest.fits("Container", container, path):
        return {name: {"numNodes": nodes, "run": ""}}
    task = read_container(manifest, container, path, nodes)
    task |= {"podTemplate": {"spec": {"containers": [container]}}} if container else {}
    return {name: task | processes(manifest, *path, "numProcPerNode")}


def job_set(manifest: Manifest, name: str) -> dict:
    tasks: dict[str, dict] = {}
    restarts = manifest.take("spec", "failurePolicy", "maxRestarts", default=0)
    parts = get(manifest.value, ("spec", "replicatedJobs"))
    for index in range(len(parts) if isinstance(parts, list) else 0):
        path = ("spec", "replicatedJobs", index)
        part = manifest.take(*path, "name", default="") or f"task-{index}"
        if error := names.label_error(part) or (part in tasks and "is there twice"):
            manifest.error((*path, "name"), error)
        if get(manifest.value, (*path, "replicas")) == 0:
            get(manifest.left, path).clear()
            manifest.note(path, "has no replicas, and is left out")
            continue
        nodes = manifest.count(*path, "replicas") * nodes_of(manifest, (*path, "template", "spec"))
        tasks[part] = read_task(manifest, (*path, "template", "spec", "template"), nodes)
        for number, each in enumerate(manifest.take(*path, "dependsOn", default=[])):
            other = str(get(each, ("name",)))
            if other not in tasks or other == part:
                manifest.error((*path, "dependsOn", number), "must name an earlier replicated job")
            # A pod without a probe is ready once it has started.
            ready = "ready" if "readinessProbe" in str(tasks.get(other)) else "started"
            state = "done" if get(each, ("status",)) == "Complete" else ready
            tasks[part].setdefault("dependsOn", {})[other] = state
        if restarts:
            tasks[part]["recovery"] = {"maxRestartsOnErrors": restarts}
    if not tasks:
        manifest.error(("spec",), "has no replicatedJobs")
    if len(tasks) > 1 and f"{get(manifest.value, ('metadata', 'name'))}-" in str(tasks):
        message = "its pods have other names: TASK-RANK.GROUP in place of NAME-TASK-0-RANK.NAME"
        manifest.note(
            ("spec", "replicatedJobs"), f"{message}; change commands and variables that name them"
        )
    return tasks


KINDS: dict[str, tuple[str, Callable[[Manifest, str], dict]]] = {
    "Job": ("batch/", job),
    "StatefulSet": ("apps/", stateful_set),
    "PyTorchJob": ("kubeflow.org/", py_torch_job),
    "TrainJob": ("trainer.kubeflow.org/", train_job),
    "JobSet": ("jobset.x-k8s.io/", job_set),
}
