"""Notes about fields of pod_config that let the pods do more than the chart's own settings, which are `restricted`.

The chart's value podSecurity forbids them; its check reads the finished pod, this one names the line of the group file.
"""

from __future__ import annotations

from collections.abc import Iterator

from jobgen.diagnostics import Path
from jobgen.group import GroupDocument

_NODE = "reaches the node and its other pods"
_API = "gives the program access to the Kubernetes API"
_RIGHTS = "gives the program more rights than an ordinary user"
_CONFINED = "removes a limit of what the program may ask the kernel for"
_ACCOUNT = (
    "gives no access to the Kubernetes API by itself: the pods have a token with automountServiceAccountToken only"
)
_FLAGS = {"hostPID": _NODE, "hostIPC": _NODE, "automountServiceAccountToken": _API}
_FLAGS |= {"serviceAccountName": _ACCOUNT, "serviceAccount": _ACCOUNT}
_CONTEXT_FLAGS = {"privileged": _NODE, "allowPrivilegeEscalation": _RIGHTS, "sysctls": _CONFINED}
_CONTEXT_FLAGS |= {"seLinuxOptions": _CONFINED}


def check(task: GroupDocument, spec: dict, path: Path) -> None:
    """Note every field of a pod's spec, found at `path`, that loosens the chart's settings."""
    for where, effect in _loosened(spec):
        message = f"{effect}; the chart's value podSecurity can forbid it, and docs/security.md describes who should"
        task.note((*path, *where), message, "loosened-pod")


def _loosened(spec: dict) -> Iterator[tuple[Path, str]]:
    yield from (((field,), effect) for field, effect in _FLAGS.items() if spec.get(field))
    yield from _context(spec.get("securityContext") or {}, ("securityContext",))
    for index, volume in _items(spec, "volumes"):
        if volume.get("hostPath") is not None:
            yield ("volumes", index, "hostPath"), _NODE
        for number, source in _items(volume.get("projected") or {}, "sources"):
            if source.get("serviceAccountToken") is not None:
                yield ("volumes", index, "projected", "sources", number, "serviceAccountToken"), _API
    for index, container in _items(spec, "containers"):
        path = ("containers", index)
        yield from _context(container.get("securityContext") or {}, (*path, "securityContext"))
        for number, port in _items(container, "ports"):
            if port.get("hostPort"):
                yield (*path, "ports", number, "hostPort"), _NODE


def _context(given: dict, path: Path) -> Iterator[tuple[Path, str]]:
    yield from (((*path, field), effect) for field, effect in _CONTEXT_FLAGS.items() if given.get(field))
    for field in ("runAsUser", "runAsGroup"):
        if given.get(field) == 0:
            yield (*path, field), _RIGHTS
    if given.get("runAsNonRoot") is False:
        yield (*path, "runAsNonRoot"), _RIGHTS
    capabilities = given.get("capabilities") or {}
    if capabilities.get("add"):
        yield (*path, "capabilities", "add"), _RIGHTS
    if "ALL" not in (["ALL"] if capabilities.get("drop") is None else capabilities["drop"]):
        yield (*path, "capabilities", "drop"), _RIGHTS
    for field in ("seccompProfile", "appArmorProfile"):
        if (given.get(field) or {}).get("type") == "Unconfined":
            yield (*path, field), _CONFINED
    if given.get("procMount") not in (None, "Default"):
        yield (*path, "procMount"), _CONFINED
    if (given.get("windowsOptions") or {}).get("hostProcess"):
        yield (*path, "windowsOptions", "hostProcess"), _NODE


def _items(given: dict, field: str) -> Iterator[tuple[int, dict]]:
    for index, each in enumerate(given.get(field) or []):
        if isinstance(each, dict):
            yield index, each
