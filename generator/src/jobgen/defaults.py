"""Defaults that differ from SkyPilot's: the sizes that it requests for a task without any, and one note about all."""

from __future__ import annotations

from jobgen.group import Group
from jobgen.quantities import multiply

# What SkyPilot requests on Kubernetes for a task that names no sizes; the differential test compares them.
_CPUS, _CPUS_FOR_A_GPU = 2, 4
_GB_FOR_A_CPU, _GB_FOR_A_CPU_WITH_GPUS = 1, 4
_SHOWN = 5  # names of tasks


def add_sizes(requests: dict[str, str], gpus: int) -> dict[str, str]:
    """Return the requests with SkyPilot's sizes where the task names none."""
    cpus = requests.get("cpu") or str(_CPUS_FOR_A_GPU * gpus if gpus else _CPUS)
    memory = multiply(cpus, _GB_FOR_A_CPU_WITH_GPUS if gpus else _GB_FOR_A_CPU) + "G"
    return {"cpu": cpus, "memory": memory, **requests}


def note(group: Group, tasks: dict[str, dict]) -> None:
    """Add one note about the defaults that apply to the group's tasks."""
    parts = ["programs run as an unnamed user and not as root"]
    if images := _named(tasks, lambda task: "image" not in task):
        parts.append(f"without image_id ({images}), they run in the chart's image and not in SkyPilot's")
    if sizes := _named(tasks, lambda task: len(_requests(task).keys() & {"cpu", "memory"}) < 2):
        message = f"cpus or memory that a task does not set ({sizes}) are not requested, where SkyPilot requests "
        message += f"{_CPUS} CPUs and {_CPUS * _GB_FOR_A_CPU} GB, or {_CPUS_FOR_A_GPU} CPUs and "
        message += f"{_CPUS_FOR_A_GPU * _GB_FOR_A_CPU_WITH_GPUS} GB for each GPU: pass --skypilot-defaults"
        parts.append(message)
    group.header.note(("name",), f"defaults differ from SkyPilot's: {'; '.join(parts)}", "default-differs")


def _requests(task: dict) -> dict:
    return task.get("resources", {}).get("requests", {})


def _named(tasks: dict[str, dict], lacks) -> str:
    names = [name for name, task in tasks.items() if lacks(task)]
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
