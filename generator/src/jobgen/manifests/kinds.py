"""One reader for each kind of object. Each returns the chart and its values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from jobgen import names
from jobgen.contract import NAME_LIMIT
from jobgen.diagnostics import Path
from jobgen.manifests.commands import LAUNCHERS, program_of, shell_line
from jobgen.manifests.manifest import Manifest, get
from jobgen.manifests.pods import OF_A_PROCESS, Pod, read_container, read_pod

RUN, GROUP = "ddp-run", "job-group"
Values = tuple[str, dict]


def run_or_group(manifest: Manifest, pod: Pod, nodes: int, workload: str, processes: int | None = None) -> Values:
    """Values of ddp-run, or those of a group of one task."""
    program = program_of(pod)
    if program is None:
        if workload == "statefulset":
            manifest.note(("kind",), "a group ends when its program has ended; a StatefulSet starts it again")
        return GROUP, group(manifest, {name_of(manifest, "metadata", "name"): task(manifest, pod, nodes)})
    values: dict = {"workload": workload, "nodes": nodes}
    values |= {"gpusPerNode": pod.gpus} if pod.gpus else {}
    values |= {"gpuResourceName": pod.gpu_name} if pod.gpu_name not in ("", "nvidia.com/gpu") else {}
    values["program"] = {"args": program.args, **({"image": pod.image} if pod.image else {})}
    if not pod.image:
        manifest.note(pod.path, "the runtime has the image; set program.image")
    processes = processes or program.processes
    if processes and processes != max(1, pod.gpus):
        values["procsPerNode"] = processes
        if processes == 1:
            message = "starts one process in each pod; remove procsPerNode for one for each GPU"
            manifest.note((*pod.path, "command"), message)
    for name in pod.exports.keys() - OF_A_PROCESS - {"RANK"}:
        manifest.note(
            pod.path, f"the launcher and the program get no {name}: the rank is RANK, the node's is NODE_RANK"
        )
    values |= {"maxRestartsInPlace": program.restarts} if program.restarts else {}
    spec = pod.template.get("spec", {})
    if spec.pop("hostNetwork", None):
        values["network"] = {"hostNetwork": True}
    if grace := spec.pop("terminationGracePeriodSeconds", None):
        values["terminationGracePeriodSeconds"] = grace
    values |= {key: each for key, each in (("resources", pod.resources), ("env", pod.env)) if each}
    return RUN, values | ({"podTemplate": pod.template} if pod.template else {})


def task(manifest: Manifest, pod: Pod, nodes: int) -> dict:
    if not pod.words:
        message = "has no command: the image or the runtime decides what runs. Write its program as command"
        manifest.error(pod.path, message)
    launches = any(name in " ".join(pod.words) for name in LAUNCHERS)
    spec = pod.template.get("spec", {})
    folder = spec.get("containers", [{}])[0].pop("workingDir", None)
    if not folder:
        manifest.note(pod.path, "starts in ~/sky_workdir, and not in the image's folder: write workingDir for another")
    elif spec["containers"] == [{}]:
        del spec["containers"]
    values = {
        "numNodes": nodes,
        "image": pod.image,
        "resources": pod.resources,
        "accelerator": {"count": pod.gpus} if pod.gpus else None,
        "env": pod.env,
        "podTemplate": {key: each for key, each in pod.template.items() if each},
        "run": shell_line(pod, folder),
        "launcher": "ddp-launch" if launches else None,
    }
    return {key: value for key, value in values.items() if value}


def name_of(manifest: Manifest, *path: str) -> str:
    return names.label(str(get(manifest.value, path) or ""), "group") or "group"


def group(manifest: Manifest, tasks: dict[str, dict]) -> dict:
    # So that the pods of a StatefulSet keep their names: NAME-0.SERVICE.
    service = manifest.has("spec", "serviceName")
    name = name_of(manifest, "spec", "serviceName") if service else name_of(manifest, "metadata", "name")
    for each, values in tasks.items():
        if len(names.job_name(name, each, values["numNodes"])) > NAME_LIMIT:
            manifest.error(("metadata", "name"), f'too long together with "{each}": shorten one of them')
    return {"name": name, "tasks": tasks}


def nodes_of(manifest: Manifest, spec: Path) -> int:
    """How many pods a Job has; they must run together."""
    manifest.take(*spec, "completionMode", default="")
    parallel = manifest.count(*spec, "parallelism")
    if not manifest.has(*spec, "completions"):
        return parallel
    nodes = manifest.count(*spec, "completions")
    if nodes != parallel:
        message = f"{nodes} pods, of which {parallel} run at a time: no pods of one run, which all start together"
        manifest.error((*spec, "completions"), message)
    return nodes


def job(manifest: Manifest) -> Values:
    nodes = nodes_of(manifest, ("spec",))
    return run_or_group(manifest, read_pod(manifest, ("spec", "template")), nodes, "indexed-job")


def stateful_set(manifest: Manifest) -> Values:
    for key, kind in (("selector", {}), ("serviceName", ""), ("podManagementPolicy", "")):
        manifest.take("spec", key, default=kind)
    nodes = manifest.count("spec", "replicas")
    return run_or_group(manifest, read_pod(manifest, ("spec", "template")), nodes, "statefulset")


def py_torch_job(manifest: Manifest) -> Values:
    """Master and Worker become equal nodes. Where they differ, the Worker's pod is taken: it has the GPUs."""
    roles = ("spec", "pytorchReplicaSpecs")
    kinds = [kind for kind in ("Master", "Worker") if manifest.has(*roles, kind)]
    nodes = sum(manifest.count(*roles, kind, "replicas") for kind in kinds)
    if not kinds:
        manifest.error(("spec",), "has neither Master nor Worker")
        return RUN, {}
    pods = [read_pod(manifest, (*roles, kind, "template"), "pytorch") for kind in kinds]
    for key in ("image", "words", "env", "resources", "gpus", "template"):
        if getattr(pods[0], key) != getattr(pods[-1], key):
            what = {"words": "command", "template": "pod"}.get(key, key)
            manifest.note((*roles, "Master"), f"its {what} differs, and all nodes are alike; Worker's is taken")
    pods[-1].exports.setdefault("WORLD_SIZE", '"$NNODES"')  # as the operator does for a plain program
    return run_or_group(manifest, pods[-1], nodes, "indexed-job", processes_of(manifest, "spec", "nprocPerNode"))


def processes_of(manifest: Manifest, *path: str) -> int | None:
    """A number of processes per node; None for a word such as auto or gpu, which is the chart's default."""
    value = get(manifest.value, path)
    if isinstance(value, (int, str)):
        manifest.take(*path, default=value)
    return int(value) if str(value).isdecimal() and int(value) else None


def train_job(manifest: Manifest) -> Values:
    trainer = ("spec", "trainer")
    if not isinstance(get(manifest.value, trainer), dict):
        manifest.error(("spec",), "has no trainer: the runtime decides what runs")
        return RUN, {}
    nodes = manifest.count(*trainer, "numNodes")
    processes = processes_of(manifest, *trainer, "numProcPerNode")
    kinds = {"image": "", "command": [], "args": [], "env": [], "resourcesPerNode": {}}
    container = {key: manifest.take(*trainer, key, default=kind) for key, kind in kinds.items()}
    container["resources"] = container.pop("resourcesPerNode")
    pod = read_container(manifest, container, trainer)
    pod.template = {"spec": {"containers": [pod.template]}} if pod.template else {}
    return run_or_group(manifest, pod, nodes, "indexed-job", processes)


def job_set(manifest: Manifest) -> Values:
    parts = manifest.value["spec"].get("replicatedJobs")
    pods: dict[str, tuple[Pod, int]] = {}
    order: dict[str, dict[str, str]] = {}
    restarts = manifest.take("spec", "failurePolicy", "maxRestarts", default=0)
    for index in range(len(parts) if isinstance(parts, list) else 0):
        path = ("spec", "replicatedJobs", index)
        name = manifest.take(*path, "name", default="") or f"task-{index}"
        if get(manifest.value, (*path, "replicas")) == 0:
            manifest.note(path, "has no replicas, and is left out")
            manifest.rest["spec"]["replicatedJobs"][index] = {}
            continue
        replicas = manifest.count(*path, "replicas")
        nodes = replicas * nodes_of(manifest, (*path, "template", "spec"))
        pods[name] = read_pod(manifest, (*path, "template", "spec", "template")), nodes
        order[name] = read_order(manifest, path)
    if not pods:
        manifest.error(("spec",), "has no replicatedJobs")
        return GROUP, {}
    [first, *others] = pods.values()
    if not others and program_of(first[0]) and first[0].words[0].rpartition("/")[2] == "torchrun":
        chart, values = run_or_group(manifest, *first, "jobset")
        return chart, values | ({"maxRestarts": restarts} if restarts else {})
    own = str(get(manifest.value, ("metadata", "name")))
    for name, (pod, _) in pods.items():
        for other in pods:
            if re.search(rf"\b{re.escape(own)}-{re.escape(other)}-\d", " ".join([*pod.words, *pod.env.values()])):
                message = f"task {name} has names of pods of {other}, which are called {other}-0 and so on in a group"
                manifest.note(pod.path, message)
    tasks = {name: task(manifest, *each) for name, each in pods.items()}
    for name, values in tasks.items():
        for other, state in order[name].items():  # a pod without a probe is ready once it has started
            probed = other in pods and "readinessProbe" in json.dumps(pods[other][0].template)
            values.setdefault("dependsOn", {})[other] = "started" if state == "ready" and not probed else state
        values |= {"recovery": {"maxRestartsOnErrors": restarts}} if restarts else {}
    return GROUP, group(manifest, tasks)


def read_order(manifest: Manifest, path: Path) -> dict[str, str]:
    """The replicated jobs that must be ready, or complete, before this one starts."""
    found = {}
    for index, each in enumerate(manifest.take(*path, "dependsOn", default=[])):
        state = {"Ready": "ready", "Complete": "done"}.get(each.get("status") if isinstance(each, dict) else None)
        if state and isinstance(each.get("name"), str):
            found[each["name"]] = state
        else:
            manifest.error((*path, "dependsOn", index), "must have a name, and the status Ready or Complete")
    return found


KINDS: dict[str, tuple[str, Callable[[Manifest], Values]]] = {
    "Job": ("batch/", job),
    "StatefulSet": ("apps/", stateful_set),
    "PyTorchJob": ("kubeflow.org/", py_torch_job),
    "TrainJob": ("trainer.kubeflow.org/", train_job),
    "JobSet": ("jobset.x-k8s.io/", job_set),
}
