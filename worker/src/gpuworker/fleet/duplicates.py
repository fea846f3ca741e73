"""GPUs and pods that the reports of two nodes claim, or one report twice: one of them is a copy."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence

from gpuworker.fleet.fleet_report import Finding, Node
from gpuworker.judgement.report import INCOMPLETE

MOST_NAMED = 3
MOST_COPIES = 2  # nodes with one serial
POD, SERIAL = "its pod ", "serial "


def duplicates(nodes: Sequence[Node]) -> list[Finding]:
    """A finding on each of the nodes that share a GPU or a pod."""
    claims: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for node in nodes:
        claims[POD, node.pod].append((node.node, ""))
        for gpu in node.gpus:
            claims["", gpu.uuid.strip().lower()].append((node.node, gpu.device))
        # one board may have several GPUs
        boards = {gpu.serial.strip(): gpu.device for gpu in node.gpus if gpu.serial.strip("0 \t")}
        for serial, device in boards.items():
            claims[SERIAL, serial].append((node.node, device))
    found = []
    for (kind, value), places in claims.items():
        # What stands on several nodes identifies nothing: a cloud masks serials, a board of two
        # trays shares one.
        if not value or len(places) < 2 or (kind == SERIAL and len(places) > MOST_COPIES):
            continue
        for place in places:
            others = _some(" ".join(each).strip() for each in places if each != place)
            words = f"{kind}{value} is also of {others}" if others else f"{value} is listed twice"
            found.append(Finding(INCOMPLETE, "copy", f"{words}: is this report a copy?", *place,
                                 found_by="coverage"))  # fmt: skip
    return found


def _some(names: Iterable[str]) -> str:
    """The first of them: thousands of reports may claim one GPU."""
    return ", ".join(itertools.islice(names, MOST_NAMED))
