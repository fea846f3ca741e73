"""A pod template as a task: GPUs, image and command as values, all else as its podTemplate."""

import re
import shlex

from jobgen.contract import SHARED_MEMORY_MOUNT
from jobgen.diagnostics import Path
from jobgen.manifests.manifest import Manifest, get
from jobgen.names import is_reserved_mount

# Variables that the chart sets in the pod, and those that the launcher sets in each process.
OF_THE_POD = re.compile(
    r"PET_\w+|NNODES|NODE_RANK|NPROC_PER_NODE|MASTER_ADDR|MASTER_PORT|RANK|RUN_ID|ATTEMPT|POD_NAME"
    r"|POD_IP|NODE_NAME|NUM_NODES|NUM_GPUS_PER_NODE|SKYPILOT_\w+"
)
OF_A_PROCESS = {"WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"}
INDEX, RANK = "JOB_COMPLETION_INDEX", '"$SKYPILOT_NODE_RANK"'
INDEX_FIELD = re.compile(
    r"metadata\.\w+\['(batch\.kubernetes\.io/job-completion|apps\.kubernetes\.io/pod)-index'\]"
)
LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate launch")
GPU = "nvidia.com/gpu"
SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")  # Kubernetes' own, in commands
OF_THE_CHART = (
    "hostname",
    "subdomain",
    "setHostnameAsFQDN",
    "activeDeadlineSeconds",
    "restartPolicy",
)
DOMAINS = (
    "job-group/",
    "app.kubernetes.io/",
    "kueue.x-k8s.io/",
    "jobset.sigs.k8s.io/",
    "batch.kubernetes.io/",
)
VOLUMES = re.compile(
    r"tmp|shared-memory|outputs|datasets|models|programs|agent|attempts|key|scripts|state|home|files"
    r"|(volume|folder)-\d+"
)


def read_task(manifest: Manifest, path: Path, nodes: int, main: str = "") -> dict:
    """The task for a pod template. Its container is the one with the name `main`, else the
    first.
    """
    if not manifest.fits("pod", get(manifest.value, path), path):
        return {"numNodes": nodes, "run": ""}
    spec = manifest.take(*path, "spec", default={})
    containers = spec.pop("containers", None) or [{}]
    index = next((n for n, each in enumerate(containers) if main and each.get("name") == main), 0)
    for other in range(len(containers)):
        if other != index:
            message = (
                "a further container; a sidecar is an init container with restartPolicy Always"
            )
            manifest.note((*path, "spec", "containers", other), message)
    for key in OF_THE_CHART:
        if spec.pop(key, None) is not None:
            manifest.note((*path, "spec", key), "decided by the chart")
    container = containers[index]
    values = read_container(manifest, container, (*path, "spec", "containers", index), nodes)
    _rename_volumes(spec, container)
    _check_mounts(manifest, spec, container, (*path, "spec"), index)
    spec |= {"containers": [container]} if container else {}
    template = {"metadata": _read_labels(manifest, path), "spec": spec}
    return values | {"podTemplate": {key: each for key, each in template.items() if each}}


def _read_labels(manifest: Manifest, path: Path) -> dict:
    found = {}
    for kind in ("labels", "annotations"):
        entries = manifest.take(*path, "metadata", kind, default={})
        for key in list(entries):
            if key.startswith(DOMAINS) or key in ("controller-uid", "job-name"):
                entries.pop(key)
                message = "of a controller, not taken over"
                manifest.note((*path, "metadata", kind, key), message)
        found |= {kind: entries} if entries else {}
    return found


def read_container(manifest: Manifest, container: dict, path: Path, nodes: int) -> dict:
    """Values for the container of a task; what stays in `container` belongs into a podTemplate."""
    container.pop("name", None)
    command = container.pop("command", None) or manifest.command
    if not command:
        message = "has no command: only the image or the runtime knows what runs; pass --command"
        manifest.error(path, message)
    words = command + container.pop("args", [])
    exports = _read_env(manifest, container, path, words)
    folder = container.pop("workingDir", None)
    before = "".join(f"export {name}={value}\n" for name, value in exports.items())
    before += f"cd -- {shlex.quote(folder)} || exit\n" if folder else ""
    values: dict = {"numNodes": nodes, "run": before + _script(words, container, exports)}
    if gpus := _take_gpus(manifest, container, path):
        values["accelerator"] = {"count": gpus}
    if any(name in " ".join(words) for name in LAUNCHERS):
        values["launcher"] = "ddp-launch"
    return values


def _read_env(manifest: Manifest, container: dict, path: Path, words: list[str]) -> dict[str, str]:
    """Variables that only the script can set, as words of the shell; the others stay in
    `container`.
    """
    exports, kept = {}, []
    for index, each in enumerate(container.pop("env", [])):
        place, name = (*path, "env", index), each["name"]
        if INDEX_FIELD.fullmatch(str(get(each, ("valueFrom", "fieldRef", "fieldPath")))):
            exports[name] = RANK
        elif name in OF_A_PROCESS and "value" in each:
            exports[name] = shlex.quote(each["value"])
        elif is_reserved(name):
            manifest.note(place, f"{name} is set by the chart")
        else:
            kept.append(each)
            if not SHELL_NAME.fullmatch(name) and f"$({name})" in " ".join(words):
                manifest.error(
                    place, f"no shell can read the variable {name} of the command: rename it"
                )
    container |= {"env": kept} if kept else {}
    if INDEX in f"{words} {kept}":
        exports.setdefault(INDEX, RANK)
    return exports


def is_reserved(name: str) -> bool:
    return bool(OF_THE_POD.fullmatch(name)) or name in OF_A_PROCESS


def _take_gpus(manifest: Manifest, container: dict, path: Path) -> int:
    """The number of GPUs, which leaves the container's resources."""
    found = "0"
    for kind in ("requests", "limits"):
        amounts = get(container, ("resources", kind)) or {}
        if GPU in amounts:
            found = str(amounts.pop(GPU))
            if not found.isdecimal():
                manifest.error((*path, "resources", kind, GPU), "must be a whole number")
            if not amounts:
                del container["resources"][kind]
    return int(found) if found.isdecimal() else 0


def _script(words: list[str], container: dict, exports: dict[str, str]) -> str:
    """The script of `bash -c` as it is; else a command of a shell that starts exactly these words.

    Kubernetes' references become the shell's. It leaves one to a variable that does not exist as it
    is.
    """
    variables = {each["name"] for each in container.get("env", [])} | exports.keys()

    def of_the_shell(found: re.Match[str]) -> str:
        name = found[1] or ""
        known = name in variables or is_reserved(name) or "envFrom" in container
        if known and SHELL_NAME.fullmatch(name):
            return f"""'"${{{name}-\\{found[0]}}}"'"""
        return found[0] if name else "$"

    of_bash = len(words) == 3 and words[0] in ("bash", "/bin/bash") and words[1] == "-c"
    if of_bash and REFERENCE.sub(of_the_shell, words[2]) == words[2]:
        return words[2]
    # A word with a reference is in single quotes.
    return " ".join(REFERENCE.sub(of_the_shell, shlex.quote(each)) for each in words) + "\n"


def _rename_volumes(spec: dict, container: dict) -> None:
    """Volumes whose names the chart uses, too, get others."""
    found = [*spec.get("volumes", [])]
    for each in [container, *spec.get("initContainers", [])]:
        found += each.get("volumeMounts", [])
    for each in found:
        if VOLUMES.fullmatch(each["name"]):
            each["name"] = f"own-{each['name']}"


def _check_mounts(manifest: Manifest, spec: dict, container: dict, path: Path, main: int) -> None:
    """Report what the chart would refuse, or leave it out with a note."""
    known = {each["name"] for each in spec.get("volumes", [])}
    for index, mount in enumerate([*container.get("volumeMounts", [])]):
        place, target = (*path, "containers", main, "volumeMounts", index), mount["mountPath"]
        if is_reserved_mount(target) and target.rstrip("/") != SHARED_MEMORY_MOUNT:
            container["volumeMounts"].remove(mount)
            manifest.note(place, "a place of the chart")
        elif mount["name"] not in known:
            message = (
                "mounts a volume that the pod does not have; one of volumeClaimTemplates becomes"
            )
            message += " a volume with `ephemeral`, or with a claim that exists"
            manifest.error(place, message)
    if get(container, ("securityContext", "privileged")):
        # With the chart's own false, Kubernetes would refuse the pod.
        container["securityContext"]["allowPrivilegeEscalation"] = True
    for index, init in enumerate(spec.get("initContainers", [])):
        for number, each in enumerate(init.get("env", [])):
            if is_reserved(each["name"]):
                message = f"{each['name']} is a name of the chart; give the variable another one"
                manifest.error((*path, "initContainers", index, "env", number), message)
