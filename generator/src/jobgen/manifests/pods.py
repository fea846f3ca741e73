"""Pod templates and containers as parts of values; what has no value is reported as lost."""

from __future__ import annotations

import re

from jobgen import credentials
from jobgen.diagnostics import ERROR, NOTE, Diagnostic, Path, json_path
from jobgen.yaml_loader import Document

# Set by the charts, or by torchrun.
_SET = re.compile(
    r"(PET_\w+|NNODES|NODE_RANK|NPROC_PER_NODE|MASTER_ADDR|MASTER_PORT|WORLD_SIZE|RANK|LOCAL_RANK|LOCAL_WORLD_SIZE"
    r"|GROUP_RANK|RUN_ID|ATTEMPT|POD_NAME|POD_IP|NODE_NAME|NUM_NODES|NUM_GPUS_PER_NODE|SKYPILOT_\w+)"
)
_GPU = re.compile(r"(nvidia\.com|amd\.com)/gpu")
_TAKEN = ("containers", "nodeSelector", "tolerations", "priorityClassName", "imagePullSecrets", "restartPolicy")
_OF_CONTAINER = ("name", "image", "command", "args", "env", "resources", "imagePullPolicy")


class Manifest:
    """One object, with what its conversion loses."""

    def __init__(self, document: Document):
        self.document = document
        self.value: dict = document.value  # a mapping, as read() checks
        self.diagnostics: list[Diagnostic] = []

    def lost(self, path: Path, message: str = "not taken over") -> None:
        self._add(path, message, "lost", NOTE)

    def error(self, path: Path, message: str) -> None:
        self._add(path, message, "not-convertible", ERROR)

    def _add(self, path: Path, message: str, code: str, severity: str) -> None:
        position = self.document.position(path, key=code == "lost")
        shown = [credentials.redact(each) for each in (json_path(path), message)]
        self.diagnostics.append(Diagnostic(*position, "manifest", None, *shown, code, severity))

    def get(self, *path: str | int, default=None):
        """Return the value at a path of keys; `default` if a part of it is missing or has another type."""
        value = self.value
        for part in path:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return default
        if value is None or (default is not None and not isinstance(value, type(default))):
            return default
        return value

    def count(self, *path: str | int) -> int:
        """Return a number of nodes or replicas, which is 1 if it is not set."""
        value = self.get(*path)
        if value is None:
            return 1
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.error(path, "must be a whole number above 0")
            return 1
        return value

    def processes(self, *path: str | int) -> dict:
        """Return a number of processes per node as a value; a word such as auto or gpu is the chart's default."""
        value = str(self.get(*path))
        return {"procsPerNode": int(value)} if value.isdecimal() and int(value) else {}

    def lose_others(self, path: Path, taken: tuple[str, ...]) -> None:
        """Report the fields of a mapping that are not among `taken`."""
        for key in self.get(*path, default={}):
            if key not in taken:
                self.lost((*path, key))


def pod(manifest: Manifest, path: Path) -> dict:
    """Return the values that a pod template has in common with a chart: placement and pull secrets."""
    spec = (*path, "spec")
    manifest.lose_others((*path, "metadata"), ("name", "creationTimestamp"))
    manifest.lose_others(spec, _TAKEN)
    fields = ("nodeSelector", "tolerations", "imagePullSecrets", "priorityClassName")
    kinds = {"nodeSelector": dict, "priorityClassName": str}
    found = {key: value for key in fields if (value := manifest.get(*spec, key))}
    for key, value in found.items():
        if not isinstance(value, kinds.get(key, list)):
            manifest.error((*spec, key), "has another type than Kubernetes accepts")
    return found


def container_path(manifest: Manifest, path: Path) -> Path:
    """Return the path of the pod's first container; others are lost."""
    containers = (*path, "spec", "containers")
    for index in range(1, len(manifest.get(*containers, default=[]))):
        manifest.lost((*containers, index), "a further container")
    manifest.lose_others((*containers, 0), _OF_CONTAINER)
    return (*containers, 0)


def refuse_credentials(manifest: Manifest, value: object, path: Path = ()) -> None:
    """Report each credential in the object, whatever field it is in: as text, as words in a row, or by its name."""
    if isinstance(value, dict):
        found = isinstance(value.get("name"), str) and credentials.is_named(value["name"], value.get("value"))
        parts = [] if found else list(value.items())
    elif isinstance(value, list):
        words, parts = [each for each in value if isinstance(each, str)], list(enumerate(value))
        found = credentials.contains(" ".join(words)) and not any(map(credentials.contains, words))
    else:
        found, parts = credentials.contains(str(value)), []
    if found:
        message = "looks like a credential, which would be readable in the values; take it from a Secret"
        manifest.error(path, message)
    for key, each in parts:
        refuse_credentials(manifest, each, (*path, key))


def command(manifest: Manifest, path: Path) -> list[str]:
    words = [*manifest.get(*path, "command", default=[]), *manifest.get(*path, "args", default=[])]
    return [str(word) for word in words]


def env(manifest: Manifest, path: Path) -> dict[str, str]:
    """Return the variables with a value. A credential is an error; names that the chart sets are left out."""
    found = {}
    for index, each in enumerate(manifest.get(*path, "env", default=[])):
        name, value = (each.get("name"), each.get("value")) if isinstance(each, dict) else (None, None)
        if not isinstance(name, str):
            manifest.error((*path, "env", index), "must be a mapping with a name")
        elif _SET.fullmatch(name):
            continue
        elif value is None:
            manifest.lost((*path, "env", index), "a variable that is taken from elsewhere, such as a Secret")
        else:
            found[name] = str(value)
    return found


def resources(manifest: Manifest, path: Path) -> tuple[dict, int, str]:
    """Return requests and limits without GPUs, the number of GPUs, and their resource name."""
    found: dict = {}
    gpus, name = 0, ""
    for kind in ("requests", "limits"):
        for resource, amount in manifest.get(*path, "resources", kind, default={}).items():
            if isinstance(amount, bool) or not isinstance(amount, (str, int, float)):
                manifest.error((*path, "resources", kind, resource), "must be a quantity")
            elif _GPU.fullmatch(str(resource)):
                gpus, name = int(amount) if str(amount).isdigit() else 0, resource
            else:
                found.setdefault(kind, {})[resource] = amount
    return found, gpus, name
