"""A pod template: the main container taken apart, and the rest for a podTemplate."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

from jobgen import pod_security
from jobgen.diagnostics import Path
from jobgen.manifests.manifest import Manifest

# Variables that the charts or torchrun set.
SET = re.compile(
    r"PET_\w+|NNODES|NODE_RANK|NPROC_PER_NODE|MASTER_ADDR|MASTER_PORT|RANK|RUN_ID|ATTEMPT|POD_NAME|POD_IP|NODE_NAME"
    r"|NUM_NODES|NUM_GPUS_PER_NODE|SKYPILOT_\w+"
)
OF_A_PROCESS = {"WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"}  # set by torchrun, and so reserved
INDEX = "JOB_COMPLETION_INDEX"
INDEX_FIELD = re.compile(r"metadata\.\w+\['(batch\.kubernetes\.io/job-completion|apps\.kubernetes\.io/pod)-index'\]")
RANK = '"$SKYPILOT_NODE_RANK"'
GPU = re.compile(r"(nvidia\.com|amd\.com)/gpu")
SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")  # Kubernetes' own, in command, args and env
OF_THE_CHART = ("hostname", "subdomain", "setHostnameAsFQDN", "activeDeadlineSeconds")  # of a pod
VOLUMES = re.compile(r"tmp|shared-memory|outputs|datasets|models|programs|agent|attempts|key|scripts|state|home|files"
                     r"|logs|(volume|folder)-\d+")  # fmt: skip
MOUNTS = re.compile(r"/(tmp|group|programs|run/gpu-charts|proc|sys|dev)(/.*)?")  # places of the charts


@dataclass
class Pod:
    """Main container of a pod template, and as `template` all that a podTemplate takes as it is."""

    path: Path
    image: str = ""
    words: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)  # of all variables
    resources: dict = field(default_factory=dict)
    gpus: int = 0
    gpu_name: str = ""
    exports: dict[str, str] = field(default_factory=dict)  # variables that only a script can set, as the shell's words
    open_names: bool = False  # variables come from a ConfigMap or Secret, too
    template: dict = field(default_factory=dict)


def read_pod(manifest: Manifest, path: Path, name: str = "") -> Pod:
    """The pod template at a path. The main container is the one with that name, else the first."""
    metadata, spec = (manifest.take(*path, key, default={}) for key in ("metadata", "spec"))
    containers = spec.pop("containers", None) or [{}]
    if not isinstance(containers, list) or not all(isinstance(each, dict) for each in containers):
        manifest.error((*path, "spec", "containers"), "must be a list of containers")
        containers = [{}]
    index = next((n for n, each in enumerate(containers) if name and each.get("name") == name), 0)
    for other in range(len(containers)):
        if other != index:
            message = "a further container; as a sidecar it is an init container with restartPolicy: Always"
            manifest.note((*path, "spec", "containers", other), message)
    if spec.pop("restartPolicy", None) == "OnFailure":
        manifest.note((*path, "spec", "restartPolicy"), "a program that fails is not started again in its pod")
    for key in OF_THE_CHART:
        if spec.pop(key, None) is not None:
            manifest.note((*path, "spec", key), "decided by the chart")
    pod = read_container(manifest, containers[index], (*path, "spec", "containers", index))
    if spec.get("hostNetwork"):
        message = "names of ranks lead to addresses of nodes, and a NetworkPolicy does not apply"
        manifest.note((*path, "spec", "hostNetwork"), message)
    metadata = {kind: metadata[kind] for kind in ("labels", "annotations") if isinstance(metadata.get(kind), dict)}
    for kind, entries in metadata.items():
        for key in [key for key in entries if _is_of_the_chart(str(key))]:
            entries.pop(key)
            manifest.note((*path, "metadata", kind, key), "of a controller, not taken over")
    rename_volumes(spec, pod.template)
    check_volumes(manifest, spec, pod)
    spec |= {"containers": [pod.template]} if pod.template else {}
    pod_security.check(manifest, spec, (*path, "spec"))
    pod.template = {key: each for key, each in (("metadata", {k: v for k, v in metadata.items() if v}),
                                                ("spec", spec)) if each}  # fmt: skip
    return pod


def _is_of_the_chart(label: str) -> bool:
    domains = "app.kubernetes.io/", "kueue.x-k8s.io/", "jobset.sigs.k8s.io/", "batch.kubernetes.io/"
    return label.startswith(domains) or label in ("controller-uid", "job-name")


def read_container(manifest: Manifest, container: dict, path: Path) -> Pod:
    """Taken apart: what is left of the container goes into a podTemplate."""
    pod = Pod(path)
    container.pop("name", None)
    if container.get("args") and not container.get("command"):
        manifest.error(
            (*path, "args"), "has no command: the image decides what the arguments are for. Write its command"
        )
    for key in ("command", "args"):
        words = container.pop(key, None) or []
        if not isinstance(words, list) or not all(isinstance(each, (str, int, float)) for each in words):
            manifest.error((*path, key), "must be a list of words")
        else:
            pod.words += map(str, words)
    pod.image = str(container.pop("image", None) or "")
    read_env(manifest, container, pod)
    pod.open_names = bool(container.get("envFrom"))
    if INDEX not in pod.names and any(INDEX in text for text in (*pod.words, *pod.env.values())):
        pod.exports[INDEX] = RANK
    for name in (found[1] for word in pod.words for found in REFERENCE.finditer(word)):
        if name in pod.names and not SHELL_NAME.fullmatch(name):
            manifest.error(path, f"no shell can read the variable {name} of its command: rename it")
    read_resources(manifest, container, pod)
    mounts = container.get("volumeMounts")
    for mount in list(mounts) if isinstance(mounts, list) else ():
        place = str(mount.get("mountPath") if isinstance(mount, dict) else "").rstrip("/")
        if MOUNTS.fullmatch(place) and place != "/dev/shm":
            manifest.note((*path, "volumeMounts", container["volumeMounts"].index(mount)), "a place of the chart")
            mounts.remove(mount)
    pod.template = {key: each for key, each in container.items() if each not in (None, [], {})}
    return pod


def read_env(manifest: Manifest, container: dict, pod: Pod) -> None:
    """Texts become `env`; what Kubernetes fills in stays as it is, in the podTemplate."""
    kept = []
    given = container.pop("env", None) or []
    for index, each in enumerate(given if isinstance(given, list) else [None]):
        path, name = (*pod.path, "env", index), each.get("name") if isinstance(each, dict) else None
        if not isinstance(name, str):
            manifest.error(path, "must be a mapping with a name")
            continue
        pod.names.add(name)
        text = str("" if each.get("value") is None else each["value"])
        source = each.get("valueFrom")
        of_field = source.get("fieldRef") if isinstance(source, dict) else None
        if INDEX_FIELD.fullmatch(str(of_field.get("fieldPath") if isinstance(of_field, dict) else "")):
            pod.exports[name] = RANK
        elif name in OF_A_PROCESS and "value" in each:
            pod.exports[name] = shlex.quote(text)
        elif is_reserved(name):
            manifest.note(path, f"{name} is set by the chart")
        elif each.keys() - {"name", "value"} or REFERENCE.search(text) or not SHELL_NAME.fullmatch(name):
            kept.append(each)
        else:
            pod.env[name] = text
    container |= {"env": kept} if kept else {}


def is_reserved(name: str) -> bool:
    return bool(SET.fullmatch(name)) or name in OF_A_PROCESS


def read_resources(manifest: Manifest, container: dict, pod: Pod) -> None:
    given, path = container.pop("resources", None), (*pod.path, "resources")
    if given is not None and not isinstance(given, dict):
        return manifest.error(path, "must be a mapping")
    for kind, amounts in (given or {}).items():
        if kind not in ("requests", "limits"):  # such as claims
            container.setdefault("resources", {})[kind] = amounts
            continue
        for resource, amount in (amounts if isinstance(amounts, dict) else {}).items():
            if isinstance(amount, bool) or not isinstance(amount, (str, int, float)):
                manifest.error((*path, kind, resource), "must be a quantity")
            elif GPU.fullmatch(str(resource)):
                pod.gpus, pod.gpu_name = int(amount) if str(amount).isdigit() else 0, resource
            else:
                pod.resources.setdefault(kind, {})[resource] = amount


def rename_volumes(spec: dict, container: dict) -> None:
    """Volumes whose names the charts use, too, get others."""
    inits = spec.get("initContainers")
    volumes = spec.get("volumes")
    mounts = [mount for each in [container, *(inits if isinstance(inits, list) else [])] if isinstance(each, dict)
              for mount in each.get("volumeMounts") or []]  # fmt: skip
    for each in [*(volumes if isinstance(volumes, list) else []), *mounts]:
        if isinstance(each, dict) and VOLUMES.fullmatch(str(each.get("name"))):
            each["name"] = f"own-{each['name']}"


def check_volumes(manifest: Manifest, spec: dict, pod: Pod) -> None:
    """What the chart would refuse only later."""
    volumes = spec.get("volumes")
    known = {each.get("name") for each in (volumes if isinstance(volumes, list) else ()) if isinstance(each, dict)}
    for index, mount in enumerate(pod.template.get("volumeMounts") or []):
        if isinstance(mount, dict) and mount.get("name") not in known:
            message = "mounts a volume that the pod does not have"
            if manifest.has("spec", "volumeClaimTemplates"):
                message += (
                    "; one of volumeClaimTemplates becomes a volume with `ephemeral`, or with a claim that exists"
                )
            manifest.error((*pod.path, "volumeMounts", index), message)
    context = pod.template.get("securityContext")
    if isinstance(context, dict) and context.get("privileged"):
        context["allowPrivilegeEscalation"] = True  # the chart's own is false, with which Kubernetes refuses it
    inits = spec.get("initContainers")
    for index, container in enumerate(inits if isinstance(inits, list) else ()):
        env = container.get("env") if isinstance(container, dict) else None
        for number, each in enumerate(env if isinstance(env, list) else ()):
            if isinstance(each, dict) and is_reserved(str(each.get("name"))):
                place = (*pod.path[:-2], "initContainers", index, "env", number)
                manifest.error(place, f"{each['name']} is a name of the chart; give the variable another one")
