"""Alternative resources (any_of, ordered), merged into the one set that a task has on Kubernetes."""

from __future__ import annotations

from jobgen.diagnostics import REFUSAL, Path
from jobgen.group import GroupDocument
from jobgen.quantities import quantity

_KINDS = ("any_of", "ordered")
_GPUS = ("accelerators", "gpus")


def select(task: GroupDocument, resources: dict) -> tuple[dict, Path]:
    """Return the merged resources, and the path at which diagnostics about them are reported."""
    path: Path = ("resources",)
    outer = {key: value for key, value in resources.items() if key not in _KINDS}
    if "any_of" in resources and "ordered" in resources:
        message = "any_of and ordered exclude each other; keep one"
        task.report("conflicting-fields", (*path, "ordered"), message, key=True)
    kind = next((kind for kind in _KINDS if resources.get(kind)), None)
    if kind is None:
        return outer, path
    if (
        isinstance(outer.get("accelerators"), (list, dict))
        and len(outer["accelerators"]) > 1
        and (kind == "ordered" or isinstance(outer["accelerators"], list))
    ):
        message = f"several accelerators together with {kind}; move them into its entries"
        task.report("conflicting-fields", (*path, "accelerators"), message, key=True)
    _check_infra(task, (*path, kind))
    entries = [(index, entry) for index, entry in enumerate(resources[kind]) if entry is not None]
    if not entries:
        message = "not supported: no alternative is Kubernetes; add one"
        task.report("refused-field", (*path, kind), message, key=True)
        return outer, path
    merged = [(index, {**outer, **entry, **_labels(outer, entry)}) for index, entry in entries]
    return _merge_gpu_types(task, merged, (*path, kind))


def _check_infra(task: GroupDocument, path: Path) -> None:
    """Report infra together with cloud, region or zone, also in alternatives that are left out."""
    raw = task.document.value["resources"]
    for index, entry in enumerate(raw[path[-1]]):
        both = {**raw, **entry} if isinstance(entry, dict) else raw
        if both.get("infra") is not None and any(both.get(key) is not None for key in ("cloud", "region", "zone")):
            message = "infra excludes cloud, region and zone; keep infra"
            task.report("conflicting-fields", (*path, index), message)


def _labels(outer: dict, entry: dict) -> dict:
    both = {**outer.get("labels", {}), **entry.get("labels", {})}
    return {"labels": both} if both else {}


def _merge_gpu_types(task: GroupDocument, merged: list[tuple[int, dict]], path: Path) -> tuple[dict, Path]:
    """Return the first alternative with the GPU types of all, if the alternatives differ in nothing else."""
    first_index, first = merged[0]
    first_path = (*path, first_index)
    for index, other in merged[1:]:
        keys = {*first, *other} - {*_GPUS, "use_spot"}  # use_spot: true is refused, and false is the default
        differs = sorted(key for key in keys if _normalized(first, key) != _normalized(other, key))
        if any(key in first for key in _GPUS) != any(key in other for key in _GPUS):
            differs.append("accelerators")
        if differs:
            message = f"not supported: it differs from the first alternative in {', '.join(differs)}; "
            message += "a task has one set of resources, with several GPU types at most"
            task.report("refused-field", (*path, index), message, REFUSAL, fallback="the first one is used")
            return first, first_path
    if any(key in first for key in _GPUS):
        types = [item for _, each in merged for item in _gpu_list(each)]
        first = {key: value for key, value in first.items() if key not in _GPUS} | {"accelerators": types}
    return first, first_path


def _normalized(resources: dict, key: str) -> object:
    """Return a value that is equal for different notations of the same setting."""
    value = resources.get(key)
    if key in ("infra", "cloud"):
        return kube_context(resources)
    if key in ("cpus", "memory") and value is not None:
        return quantity(value, "gb")
    return {"strategy": value} if key == "job_recovery" and isinstance(value, str) else value


def kube_context(resources: dict) -> str | None:
    """Return CONTEXT of infra k8s/CONTEXT."""
    context = resources.get("infra", "").strip().strip("/").partition("/")[2].strip()
    return context if context not in ("", "*") else None


def _gpu_list(resources: dict) -> list[str]:
    given = resources.get("accelerators", resources.get("gpus"))
    if isinstance(given, dict):
        return [name if count is None else f"{name}:{count}" for name, count in given.items()]
    return [given] if isinstance(given, str) else given
