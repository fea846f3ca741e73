"""GPUs and pods that the reports of two nodes claim, or one report twice: one of them is a copy."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence

from gpuworker.accept.report import INCOMPLETE
from gpuworker.fleet.fleet_report import Finding, Node

MOST_NAMED = 3


def duplicates(nodes: Sequence[Node]) -> list[Finding]:
    """A finding on each of the nodes that share a GPU or a pod."""
    gpus: dict[str, list[tuple[str, str]]] = defaultdict(list)
    pods: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        for gpu in node.gpus:
            gpus[gpu.uuid].append((node.node, gpu.device))
        pods[node.pod].append(node.node)
    gpus.pop("", None)
    pods.pop("", None)
    found = []
    for uuid, places in gpus.items():
        for node, device in places if len(places) > 1 else ():
            others = _some(" ".join(place) for place in places if place != (node, device)) or "listed twice"
            found.append(Finding(INCOMPLETE, f"{uuid} is also {others}: is this report a copy?", node, device,
                                 "environment", "coverage"))  # fmt: skip
    for pod, names in pods.items():
        for node in names if len(names) > 1 else ():
            others = _some(name for name in names if name != node)
            found.append(Finding(INCOMPLETE, f"its pod {pod} also reported {others}: is this report a copy?", node,
                                 found_by="coverage"))  # fmt: skip
    return found


def _some(names: Iterable[str]) -> str:
    """The first of them: thousands of reports may claim one GPU."""
    return ", ".join(itertools.islice(names, MOST_NAMED))
