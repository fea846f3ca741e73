"""The field resources as values: sizes, GPUs, image, labels, recovery."""

from __future__ import annotations

import math
from decimal import Decimal

from jobgen import defaults, gpu_names
from jobgen.accelerators import ACCELERATORS
from jobgen.alternatives import kube_context, select
from jobgen.diagnostics import NOTE, REFUSAL, WARNING, Path, quoted
from jobgen.group import GroupDocument
from jobgen.quantities import multiply, quantity


def convert(task: GroupDocument, pod: dict) -> dict:
    """Return image, resources, accelerator and recovery of the task. Labels and priority are added to `pod`."""
    given, path = select(task, task.fields.get("resources") or {})
    _check_infra(task, given, path)
    values = {}
    image = given.get("image_id")
    if isinstance(image, dict):
        image = image.get("docker")
    if image is not None:
        values["image"] = image.removeprefix("docker:")
    if types := _accelerators(task, given, path):
        values["accelerator"] = types
    requests = _requests(task, given, path)
    if task.options.skypilot_defaults:
        requests = defaults.add_sizes(requests, types["count"] if types else 0)
    if requests:
        values["resources"] = {"requests": requests}
        if limits := _limits(task, requests):
            values["resources"]["limits"] = limits
    if "job_recovery" in given and (recovery := _recovery(task, given["job_recovery"], (*path, "job_recovery"))):
        values["recovery"] = recovery
    if given.get("labels"):
        pod.setdefault("metadata", {})["labels"] = dict(given["labels"])
    if "priority_class" in given:
        pod.setdefault("spec", {})["priorityClassName"] = given["priority_class"]
    return values


def _check_infra(task: GroupDocument, given: dict, path: Path) -> None:
    """Report infra together with cloud, and a context: helm chooses the cluster."""
    if path == ("resources",) and "infra" in given and "cloud" in given:
        task.report("conflicting-fields", (*path, "cloud"), "infra and cloud exclude each other; keep infra", key=True)
    if context := kube_context(given):
        note = f"install with `helm --kube-context {context}`; values do not name a cluster"
        task.note((*path, "infra"), note)


def _requests(task: GroupDocument, given: dict, path: Path) -> dict[str, str]:
    requests = {}
    if "cpus" in given:
        requests["cpu"] = quantity(given["cpus"])
    if "memory" in given:
        requests["memory"] = quantity(given["memory"], "gb")
    disks = [field for field in ("disk_size", "ephemeral_storage") if field in given]
    for field in disks[1:]:
        task.report("ignored-field", (*path, field), "ignored: disk_size has the same meaning and is used", NOTE, True)
    if disks and str(given[disks[0]]) == "256":
        message = "ignored: 256 is SkyPilot's default, which requests nothing"
        task.report("ignored-field", (*path, disks[0]), message, NOTE, True)
    elif disks:
        requests["ephemeral-storage"] = quantity(given[disks[0]], "gb")
    return requests


def _limits(task: GroupDocument, requests: dict[str, str]) -> dict[str, str]:
    factor = (task.fields.get("config") or {}).get("kubernetes", {}).get("set_pod_resource_limits", False)
    if factor is False:
        return {}
    return {name: multiply(amount, 1 if factor is True else factor) for name, amount in requests.items()}


def _accelerators(task: GroupDocument, given: dict, path: Path) -> dict | None:
    field = "gpus" if "gpus" in given else "accelerators"
    if "gpus" in given and "accelerators" in given:
        task.report("conflicting-fields", (*path, "gpus"), "gpus is another name of accelerators; keep one", key=True)
    if field not in given:
        return None
    path = (*path, field)
    counts = _accelerator_counts(task, path, given[field])
    if not counts:  # all of them are invalid
        return None
    if len(set(counts.values())) > 1:
        kept = next(iter(counts))
        message = "not supported: alternatives with different counts; a task has the same number of GPUs on every node"
        message += f". Write one, such as {kept}:{math.ceil(counts[kept])}"
        task.report("refused-field", path, message, REFUSAL, fallback=f"{kept} is used")
        counts = {kept: counts[kept]}
    count = next(iter(counts.values()))
    whole = math.ceil(count)
    if whole != count:
        task.note(path, f"rounded up to {whole}: Kubernetes assigns whole GPUs to a pod")
    for name in counts:
        if name not in ACCELERATORS:
            _warn(task, path, name)
    return {"types": list(counts), "count": whole}


def _warn(task: GroupDocument, path: Path, name: str) -> None:
    """Warn about a GPU type without node labels, and name similar ones."""
    known = [each for each in gpu_names.similar(name) if each in ACCELERATORS]
    hint = f" Did you mean {' or '.join(map(quoted, known[:3]))}?" if known else ""
    message = f'the chart has no node labels for the GPU type "{name}".{hint} Without a node that has the label '
    message += f"nvidia.com/gpu.product={name}, the pods stay Pending; set the chart's value accelerators.types.{name}"
    task.report("unknown-gpu", path, message, WARNING)


def _accelerator_counts(task: GroupDocument, path: Path, given: str | dict | list) -> dict[str, Decimal]:
    """H100, "H100:8", {H100: 8}, [L4, T4] -> type to count."""
    names = [given] if isinstance(given, str) else given
    pairs = given.items() if isinstance(given, dict) else [(each, None) for each in names]
    counts = {}
    for text, amount in pairs:
        name, _, count = text.partition(":")
        known = gpu_names.canonical(name)
        if known.lower() != name.lower():
            task.note(path, f'"{name}" is read as "{known}", the only GPU type that contains it')
        number = Decimal(str(amount if amount is not None else count or 1))
        if counts.setdefault(known, number) != number:
            task.report("conflicting-fields", path, f"{known} with two counts; keep one")
    return counts


def _recovery(task: GroupDocument, given: str | dict, path: Path) -> dict:
    if isinstance(given, str):
        message = "ignored: a strategy chooses between clouds; Kubernetes replaces a pod that was preempted"
        task.report("ignored-field", path, message, NOTE, True)
        return {}
    values = {}
    if given.get("max_restarts_on_errors"):
        values["maxRestartsOnErrors"] = given["max_restarts_on_errors"]
    codes = given.get("recover_on_exit_codes", [])
    codes = [codes] if isinstance(codes, int) else codes
    if 0 in codes:
        message = "0 means that the task has succeeded; Kubernetes cannot restart on it. Remove it"
        task.report("refused-field", (*path, "recover_on_exit_codes"), f"not supported: {message}", REFUSAL)
    if codes := [code for code in codes if code]:
        values["recoverOnExitCodes"] = codes
    return values
