"""GPUs and pods that the reports of two nodes claim, or one report twice: one of them is a copy."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence

from gpuworker.fleet.fleet_report import Finding, Node
from gpuworker.judgement.report import INCOMPLETE

MOST_NAMED = 3
MOST_COPIES = 2  # nodes with one serial


def duplicates(nodes: Sequence[Node]) -> list[Finding]:
    """A finding on each of the nodes that share a GPU or a pod."""
    gpus: dict[str, list[tuple[str, str]]] = defaultdict(list)
    # serial -> node -> device; one board may have several GPUs
    boards: dict[str, dict[str, str]] = defaultdict(dict)
    pods: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        for gpu in node.gpus:
            gpus[gpu.uuid.strip().lower()].append((node.node, gpu.device))
            boards[gpu.serial.strip("0 \t") and gpu.serial.strip()][node.node] = gpu.device
        pods[node.pod].append(node.node)
    # What stands on several nodes identifies nothing: a cloud masks serials, a board of two trays
    # shares one.
    boards = {serial: places for serial, places in boards.items() if len(places) <= MOST_COPIES}
    gpus.pop("", None)
    boards.pop("", None)
    pods.pop("", None)
    found = []
    shared = list(gpus.items())
    shared += [(f"serial {serial}", list(places.items())) for serial, places in boards.items()]
    for name, places in shared:
        for node, device in places if len(places) > 1 else ():
            others = (
                _some(" ".join(place) for place in places if place != (node, device))
                or "listed twice"
            )
            found.append(Finding(INCOMPLETE, "copy", f"{name} is also {others}: is this report a copy?", node, device,
                                 "environment", "coverage"))  # fmt: skip
    for pod, names in pods.items():
        for node in names if len(names) > 1 else ():
            others = _some(name for name in names if name != node)
            words = f"its pod {pod} also reported {others}: is this report a copy?"
            found.append(Finding(INCOMPLETE, "copy", words, node, found_by="coverage"))
    return found


def _some(names: Iterable[str]) -> str:
    """The first of them: thousands of reports may claim one GPU."""
    return ", ".join(itertools.islice(names, MOST_NAMED))
