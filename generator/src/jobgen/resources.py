"""SkyPilot's notations for sizes, GPUs, places and images. Each function raises ValueError with what to write."""

from __future__ import annotations

import json
import re
from decimal import Decimal

_AMOUNT = r"([0-9]+(?:\.[0-9]+)?)"
_UNITS = {"kb": "k", "mb": "M", "gb": "G", "tb": "T", "pb": "P"}  # decimal, in Kubernetes' spelling


def cpu_quantity(cpus: float | str) -> str:
    """4, "4+" -> "4"."""
    match = re.fullmatch(_AMOUNT + r"\+?", str(cpus).strip())
    if not match or not Decimal(match[1]):
        raise ValueError(f'must be a number above 0, such as 4 or "4+", got {json.dumps(cpus)}')
    return _short(match[1])


def memory_quantity(memory: float | str) -> str:
    """16, "16+", "16GB" -> "16G"; "16Gi" -> "16Gi"."""
    match = re.fullmatch(_AMOUNT + r"([KMGTP][Bi])?\+?", str(memory).strip(), re.IGNORECASE)
    if not match or not Decimal(match[1]):
        raise ValueError(f'must be a size above 0, such as 16, "16+", "64GB" or "64Gi", got {json.dumps(memory)}')
    unit = (match[2] or "gb").lower()
    return _short(match[1]) + (_UNITS.get(unit) or unit.capitalize())


def accelerator(accelerators: str | dict | list) -> dict[str, str | int]:
    """H100, "H100:8", {H100: 8} -> {type: H100, count: 8}."""
    if isinstance(accelerators, list) or (isinstance(accelerators, dict) and len(accelerators) != 1):
        raise ValueError('alternatives are not supported; write the one you want, such as "H100:8"')
    if isinstance(accelerators, dict):
        ((name, count),) = accelerators.items()
    else:
        name, colon, count = accelerators.partition(":")
        count = count if colon else 1
    name, match = name.strip(), re.fullmatch(_AMOUNT, str(count).strip())
    if not name or not match or not Decimal(match[1]):
        raise ValueError('must be a type and a count above 0, such as H100, "H100:8" or {H100: 8}')
    if Decimal(match[1]) % 1:
        raise ValueError("a fraction of a GPU is not supported: Kubernetes gives whole GPUs to a pod")
    return {"type": name, "count": int(Decimal(match[1]))}


def check_infra(infra: str) -> None:
    """Accepts kubernetes and k8s."""
    cloud, slash, _ = infra.strip().lower().partition("/")
    if cloud not in ("kubernetes", "k8s"):
        raise ValueError(f'only "kubernetes" is supported, got "{infra}"')
    if slash:
        raise ValueError('write "kubernetes" without a context; helm chooses the cluster, with --kube-context')


def image(image_id: str | dict) -> str:
    """docker:python:3.12, python:3.12 -> python:3.12."""
    if isinstance(image_id, dict):
        raise ValueError('an image for each region is not supported; write one, such as "docker:python:3.12"')
    reference = image_id.removeprefix("docker:")
    if not re.fullmatch(r"\S+", reference):
        raise ValueError('must be a container image, such as "docker:python:3.12"')
    return reference


def _short(number: str) -> str:
    """Without needless zeros: 4.0 -> 4."""
    return f"{Decimal(number).normalize():f}"
