"""The field resources as values: sizes, GPUs, image, labels, recovery."""

import math
from decimal import Decimal

from jobgen.accelerators import ACCELERATORS
from jobgen.diagnostics import NOTE, WARNING, Path
from jobgen.group import GroupDocument
from jobgen.quantities import quantity


def convert(task: GroupDocument, pod: dict) -> dict:
    """Return image, resources, accelerator and recovery of the task. Labels and priority are
    added to `pod`.
    """
    given, path = task.fields.get("resources") or {}, ("resources",)
    if context := kube_context(given):
        note = f"install with `helm --kube-context {context}`; values do not name a cluster"
        task.note((*path, "infra"), note)
    values = {}
    image = given.get("image_id")
    if isinstance(image, dict):
        image = image.get("docker")
    if image is not None:
        values["image"] = image.removeprefix("docker:")
    if types := _accelerators(task, given, path):
        values["accelerator"] = types
    requests = _requests(task, given, path)
    if requests:
        values["resources"] = {"requests": requests}
    if recovery := _recovery(given.get("job_recovery", {})):
        values["recovery"] = recovery
    if given.get("labels"):
        pod.setdefault("metadata", {})["labels"] = dict(given["labels"])
    if "priority_class" in given:
        pod.setdefault("spec", {})["priorityClassName"] = given["priority_class"]
    return values


def kube_context(resources: dict) -> str | None:
    """Return CONTEXT of infra k8s/CONTEXT."""
    context = resources.get("infra", "").strip().strip("/").partition("/")[2].strip()
    return context if context not in ("", "*") else None


def _requests(task: GroupDocument, given: dict, path: Path) -> dict[str, str]:
    names = {"cpus": "cpu", "memory": "memory", "disk_size": "ephemeral-storage"}
    if str(given.get("disk_size")) == "256":
        del names["disk_size"]
        message = "ignored: 256 is SkyPilot's default, which requests nothing"
        task.report("ignored-field", (*path, "disk_size"), message, NOTE, True)
    return {
        name: quantity(given[field], "" if field == "cpus" else "gb")
        for field, name in names.items()
        if field in given
    }


def _accelerators(task: GroupDocument, given: dict, path: Path) -> dict | None:
    field = "gpus" if "gpus" in given else "accelerators"
    if "gpus" in given and "accelerators" in given:
        task.report(
            "conflicting-fields",
            (*path, "gpus"),
            "gpus is another name of accelerators; keep one",
            key=True,
        )
    if field not in given:
        return None
    path = (*path, field)
    counts = _accelerator_counts(task, path, given[field])
    if not counts:  # all of them are invalid
        return None
    if len(set(counts.values())) > 1:
        kept = next(iter(counts))
        message = (
            "not supported: alternatives with different counts; a task has the same number "
            "of GPUs on every node"
        )
        message += f". Write one, such as {kept}:{math.ceil(counts[kept])}"
        task.report("refused-field", path, message)
        counts = {kept: counts[kept]}
    count = next(iter(counts.values()))
    whole = math.ceil(count)
    if whole != count:
        task.note(path, f"rounded up to {whole}: Kubernetes assigns whole GPUs to a pod")
    for name in counts.keys() - ACCELERATORS:
        known = ", ".join(sorted(ACCELERATORS))
        message = (
            f'the chart has no node labels for the GPU type "{name}", but for {known}. Without '
        )
        message += (
            f"a node that has the label nvidia.com/gpu.product={name}, the pods stay Pending; "
        )
        task.report(
            "unknown-gpu",
            path,
            f"{message}set the chart's value accelerators.types.{name}",
            WARNING,
        )
    return {"types": list(counts), "count": whole}


def _accelerator_counts(
    task: GroupDocument, path: Path, given: str | dict | list
) -> dict[str, Decimal]:
    """H100, "H100:8", {H100: 8}, [L4, T4] -> type to count."""
    names = [given] if isinstance(given, str) else given
    pairs = given.items() if isinstance(given, dict) else [(each, None) for each in names]
    counts = {}
    for text, amount in pairs:
        name, _, count = text.partition(":")
        known = next((each for each in ACCELERATORS if each.lower() == name.lower()), name)
        number = Decimal(str(amount if amount is not None else count or 1))
        if counts.setdefault(known, number) != number:
            task.report("conflicting-fields", path, f"{known} with two counts; keep one")
    return counts


def _recovery(given: dict) -> dict:
    codes = given.get("recover_on_exit_codes", [])
    values = {
        "maxRestartsOnErrors": given.get("max_restarts_on_errors"),
        "recoverOnExitCodes": [codes] if isinstance(codes, int) else codes,
    }
    return {key: value for key, value in values.items() if value}
