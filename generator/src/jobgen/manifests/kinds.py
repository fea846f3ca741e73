"""One reader for each kind of object. Each returns the chart and its values."""

from __future__ import annotations

from collections.abc import Callable

from jobgen import names
from jobgen.contract import NAME_LIMIT, VALUES_SCHEMA_VERSION
from jobgen.diagnostics import Path
from jobgen.manifests import pods, torchrun
from jobgen.manifests.pods import Manifest

RUN, GROUP = "ddp-run", "job-group"
_MODEL = "nvidia.com/gpu.product"  # node label of the GPU type
Values = tuple[str, dict]


def job(manifest: Manifest) -> Values:
    spec = ("spec",)
    return RUN, _run(manifest, (*spec, "template"), _nodes(manifest, spec), "indexed-job")


def _nodes(manifest: Manifest, spec: Path) -> int:
    """Return how many pods a Job has, and report its other fields."""
    manifest.lose_others(spec, ("template", "parallelism", "completions", "completionMode"))
    return manifest.count(*spec, "completions" if manifest.get(*spec, "completions") else "parallelism")


def stateful_set(manifest: Manifest) -> Values:
    spec = ("spec",)
    manifest.lose_others(spec, ("template", "replicas", "selector", "serviceName", "podManagementPolicy"))
    return RUN, _run(manifest, (*spec, "template"), manifest.count(*spec, "replicas"), "statefulset")


def py_torch_job(manifest: Manifest) -> Values:
    spec = ("spec", "pytorchReplicaSpecs")
    manifest.lose_others(("spec",), ("pytorchReplicaSpecs", "nprocPerNode"))
    kinds = [kind for kind in ("Master", "Worker") if manifest.get(*spec, kind)]
    nodes = sum(manifest.count(*spec, kind, "replicas") for kind in kinds)
    for kind in kinds:
        manifest.lose_others((*spec, kind), ("replicas", "template"))
    first = (*spec, kinds[0] if kinds else "Master")
    if len(kinds) == 2 and (fields := _differences(manifest, first, (*spec, "Worker"))):
        message = f"{fields} of its container differ from Master, and all nodes of ddp-run are alike; Master is taken"
        manifest.lost((*spec, "Worker"), message)
    values = _run(manifest, (*first, "template"), nodes, "indexed-job")
    values |= manifest.processes("spec", "nprocPerNode")
    _note_processes(manifest, (*first, "template", "spec", "containers", 0), values)
    return RUN, values


def _differences(manifest: Manifest, one: Path, other: Path) -> str:
    """Return the names of the fields in which the containers of two kinds of replicas differ."""
    container = ("template", "spec", "containers", 0)
    left, right = (manifest.get(*each, *container, default={}) for each in (one, other))
    return ", ".join(sorted(key for key in left.keys() | right.keys() if left.get(key) != right.get(key)))


def _note_processes(manifest: Manifest, container: Path, values: dict) -> None:
    """Report that a program without torchrun had one process in each pod."""
    gpus, nodes = values.get("gpusPerNode", 1), values["nodes"]
    if gpus > 1 and "procsPerNode" not in values and not torchrun.names_launcher(pods.command(manifest, container)):
        message = f"starts one process in each pod, and torchrun one for each of {gpus} GPUs: {gpus * nodes} in place"
        manifest.lost((*container, "command"), f"{message} of {nodes}. To keep {nodes}, set procsPerNode: 1")


def elastic_job(manifest: Manifest) -> Values:
    """The workers of a job of DLRover, which ddp-run starts in a fixed number."""
    roles = ("spec", "replicaSpecs")
    others = ("ps", "chief", "evaluator")
    manifest.lose_others(("spec",), ("replicaSpecs", "distributionStrategy"))
    manifest.lose_others(roles, ("worker", *others))
    for role in others:
        if manifest.get(*roles, role) is not None:
            manifest.error((*roles, role), "all nodes of ddp-run are alike; write each role as a task of job-group")
    worker = (*roles, "worker")
    manifest.lose_others(worker, ("replicas", "template"))
    return RUN, _run(manifest, (*worker, "template"), manifest.count(*worker, "replicas"), "indexed-job")


def train_job(manifest: Manifest) -> Values:
    trainer = ("spec", "trainer")
    manifest.lose_others(("spec",), ("trainer",))
    fields = ("numNodes", "numProcPerNode", "image", "command", "args", "env", "resourcesPerNode")
    manifest.lose_others(trainer, fields)
    if not isinstance(manifest.get(*trainer), dict):
        manifest.error(("spec",), "has no trainer: the runtime decides what runs")
        return RUN, {}
    if not manifest.get(*trainer, "image"):
        manifest.lost(trainer, "the runtime has the image; set program.image")
    values = _program(manifest, trainer)
    manifest.value["spec"]["trainer"]["resources"] = manifest.get(*trainer, "resourcesPerNode")  # as in a container
    values |= manifest.processes(*trainer, "numProcPerNode")
    nodes = manifest.count(*trainer, "numNodes")
    return RUN, {"workload": "indexed-job", "nodes": nodes, **_sizes(manifest, trainer), **values}


def job_set(manifest: Manifest) -> Values:
    manifest.lose_others(("spec",), ("replicatedJobs",))
    parts = manifest.get("spec", "replicatedJobs", default=[])
    for index in range(len(parts)):
        manifest.lose_others(("spec", "replicatedJobs", index), ("name", "replicas", "template"))
    if len(parts) == 1:
        path = ("spec", "replicatedJobs", 0)
        template = (*path, "template", "spec", "template")
        if torchrun.parse(pods.command(manifest, (*template, "spec", "containers", 0))):
            return RUN, _run(manifest, template, _count(manifest, path), "jobset")
    tasks = {}
    for index in range(len(parts)):
        path = ("spec", "replicatedJobs", index)
        task = _task(manifest, (*path, "template", "spec", "template"), _count(manifest, path))
        tasks[str(manifest.get(*path, "name") or f"task-{index}")] = task
    return GROUP, _group(manifest, tasks)


def _count(manifest: Manifest, path: Path) -> int:
    return manifest.count(*path, "replicas") * _nodes(manifest, (*path, "template", "spec"))


def ray_job(manifest: Manifest) -> Values:
    """A head that runs the entrypoint when all workers are there, and one task for each group of workers."""
    cluster = ("spec", "rayClusterSpec")
    if not isinstance(manifest.get(*cluster), dict):
        manifest.error(("spec",), "has no rayClusterSpec: the job runs on a Ray cluster that exists already")
        return GROUP, {}
    manifest.lose_others(("spec",), ("rayClusterSpec", "entrypoint", "shutdownAfterJobFinishes"))
    manifest.lose_others(cluster, ("headGroupSpec", "workerGroupSpecs", "rayVersion"))
    head = (*cluster, "headGroupSpec")
    manifest.lose_others(head, ("template", "rayStartParams"))
    name = _name(manifest)
    groups = manifest.get(*cluster, "workerGroupSpecs", default=[])
    entrypoint = str(manifest.get("spec", "entrypoint") or "")
    if not entrypoint:
        manifest.error(("spec",), "has no entrypoint")
    head_run = f"set -e\nray start --head --port=6379\n{entrypoint}\n"
    tasks = {"head": {**_task(manifest, (*head, "template"), 1, head_run)}}
    for index in range(len(groups)):
        path = (*cluster, "workerGroupSpecs", index)
        manifest.lose_others(path, ("template", "rayStartParams", "replicas", "groupName", "numOfHosts"))
        label = names.label(str(manifest.get(*path, "groupName") or ""), "worker") or "worker"
        run = f"exec ray start --address=head-0.{name}:6379 --block\n"
        nodes = manifest.count(*path, "replicas") * manifest.count(*path, "numOfHosts")
        task = _task(manifest, (*path, "template"), nodes, run)
        tasks["worker" if label == "head" else label] = task
    return GROUP, {**_group(manifest, tasks), "primaryTasks": ["head"]}


def _run(manifest: Manifest, template: Path, nodes: int, workload: str) -> dict:
    container = pods.container_path(manifest, template)
    values = {"workload": workload, "nodes": nodes, **_sizes(manifest, container)}
    return {**values, **_program(manifest, container), **pods.pod(manifest, template)}


def _sizes(manifest: Manifest, container: Path) -> dict:
    resources, gpus, name = pods.resources(manifest, container)
    values: dict = {"gpusPerNode": gpus} if gpus else {}
    if name and name != "nvidia.com/gpu":
        values["gpuResourceName"] = name
    return {**values, "resources": resources} if resources else values


def _program(manifest: Manifest, container: Path) -> dict:
    command = pods.command(manifest, container)
    program = torchrun.parse(command)
    if program is None or not program.args:
        message = "starts neither torchrun nor a Python program, so ddp-run cannot start it"
        if not manifest.get(*container, "command"):
            message = "has no command: the image or the runtime decides what runs. Write its program as command"
        manifest.error(container, message)
        program = torchrun.Program([])
    for words in program.lost:
        way_out = "ddp-run has no such option" if words.startswith("-") else "put it into the program or the image"
        manifest.lost((*container, "command"), f"{way_out}: {words}")
    if any("$" in word for word in program.args):
        manifest.lost((*container, "command"), "ddp-run starts the program without a shell: variables stay as written")
    image = manifest.get(*container, "image")
    values: dict = {"program": {"args": program.args, **({"image": image} if image else {})}}
    if program.processes:
        values["procsPerNode"] = program.processes
    if program.restarts:
        values["maxRestartsInPlace"] = program.restarts
    variables = pods.env(manifest, container)
    return {**values, "env": variables} if variables else values


def _task(manifest: Manifest, template: Path, nodes: int, run: str | None = None) -> dict:
    import shlex

    container = pods.container_path(manifest, template)
    placement = pods.pod(manifest, template)
    words = pods.command(manifest, container)
    resources, gpus, _ = pods.resources(manifest, container)
    model = manifest.get(*template, "spec", "nodeSelector", _MODEL)
    if gpus and not isinstance(model, str):
        manifest.error(
            (*container, "resources"), f"requests GPUs, and a group names their type: add nodeSelector {_MODEL}"
        )
    values = {
        "numNodes": nodes,
        "image": manifest.get(*container, "image"),
        "resources": resources,
        "accelerator": {"types": [model], "count": gpus} if gpus else None,
        "env": pods.env(manifest, container),
        "podTemplate": {"spec": placement} if placement else None,
        "run": run or (shlex.join(words) + "\n" if words else None),
    }
    if not values["run"]:
        manifest.error(container, "has no command, and a task does not run the entry point of its image")
    return {key: value for key, value in values.items() if value}


def _name(manifest: Manifest) -> str:
    return names.label(str(manifest.get("metadata", "name") or ""), "group") or "group"


def _group(manifest: Manifest, tasks: dict[str, dict]) -> dict:
    name = _name(manifest)
    for task, values in tasks.items():
        if len(names.job_name(name, task, values["numNodes"])) > NAME_LIMIT:
            manifest.error(("metadata", "name"), f'too long together with "{task}": shorten one of them')
    return {"name": name, "tasks": tasks, "schemaVersion": VALUES_SCHEMA_VERSION}


READERS: dict[str, Callable[[Manifest], Values]] = {
    "Job": job,
    "StatefulSet": stateful_set,
    "PyTorchJob": py_torch_job,
    "ElasticJob": elastic_job,
    "TrainJob": train_job,
    "JobSet": job_set,
    "RayJob": ray_job,
}
