"""Coverage of the fleet: which of the expected nodes reported, which reports are of no expected
node, and which are copies.
"""

from __future__ import annotations

import datetime
import itertools
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial

from gpuworker.judgement.findings import Finding
from gpuworker.judgement.fleet_report import Coverage, Node, World, natural_sort_key
from gpuworker.judgement.judge import Judged
from gpuworker.judgement.report import INCOMPLETE, PASS, WARN
from gpuworker.judgement.sources import Expected

MOST_NAMED = 3
MOST_COPIES = 2  # nodes with one serial
MOST_EQUAL = 8  # fewer rates of two nodes may be equal by chance
RATES = ("TFLOP/s", "GB/s")
FEWEST = 3  # nodes of which most show when the test was
A_DAY = datetime.timedelta(days=1)
POD, NAME, SERIAL = "its pod ", "its name ", "serial "

_finding = partial(Finding, INCOMPLETE, found_by="coverage")


def coverage_of(nodes: list[Node], expected: Expected) -> Coverage:
    known = {*expected.names, *(node for node, *_ in expected.unreported.values() if node)}
    missing = sorted(known - {node.node for node in nodes}, key=natural_sort_key)
    count, requested = expected.nodes, expected.requested
    gpus = sum(node.gpus_expected for node in nodes)
    if count and requested:
        gpus = count * requested.gpus
    return Coverage(count, len(nodes), missing, gpus, sum(node.gpus_seen for node in nodes))


def not_covered(
    coverage: Coverage,
    nodes: list[Node],
    worlds: list[World],
    expected: Expected,
    damaged: Collection[str],
) -> list[Finding]:
    """Everything without which the fleet is not known completely.

    `damaged`: nodes whose report cannot be read.
    """
    found = [*_missing(coverage, nodes, expected, damaged)]
    if expected.world and not worlds and not found:
        words = "no report of the checks across nodes, for which at least two nodes must pass"
        found.append(_finding("no-world", words))
    reported = {node.node for node in nodes}
    for world in worlds:
        others = [name for name in world.nodes if name not in reported]
        if others and (world.verdict in (PASS, WARN) or is_foreign(world.nodes, reported)):
            words = f"{world.name}: {', '.join(others[:MOST_NAMED])} did not report"
            found.append(_finding("foreign", words))
    return [*found, *_copies(nodes), *([] if expected.live else _stale(nodes))]


def is_foreign(world: Collection[str], reported: Collection[str]) -> bool:
    """Whether the nodes of a world are others than those of the fleet: what it shows does not
    count.
    """
    return bool(reported) and set(world).isdisjoint(reported)


def _missing(
    coverage: Coverage, nodes: list[Node], expected: Expected, damaged: Collection[str]
) -> Iterator[Finding]:
    explained, silent = set(damaged), "no report received from this expected node"
    for pod, (node, kind, state) in expected.unreported.items():
        words = f"{silent}: " if node in coverage.missing else "no new report: " * bool(node)
        yield _finding(kind, f"{words}{f'pod {pod} ' * bool(pod)}{state}", node)
        explained.add(node)
    for name in coverage.missing:
        if name not in explained:
            yield _finding("no-report", silent, name)
    for node in nodes:
        if node.last_seen:
            words = f"nothing was heard of its pod since {node.last_seen}"
            yield _finding("pod-gone", words, node.node)
        if expected.names and node.node not in expected.names:
            yield _finding("foreign", "not one of the expected nodes", node.node)
    reported, wanted = coverage.nodes_reported, coverage.nodes_expected
    if not reported and not (expected.unreported or coverage.missing):
        yield _finding("no-report", "no node report received")
    elif wanted is None:
        words = "the number of nodes is not set (nodes, --expect-nodes): "
        yield _finding("nodes-expected", f"{words}missing nodes are not detected")
    elif 0 < reported < wanted - len(coverage.missing):
        yield _finding("no-report", f"{reported} of {wanted} expected nodes reported")
    elif reported > wanted and not expected.names:
        words = f"{reported} nodes reported, more than the {wanted} expected: "
        words += "correct the number, or find the report that is not of this fleet"
        yield _finding("nodes-expected", words)


def _stale(nodes: Sequence[Node]) -> Iterator[Finding]:
    """Reports that are days older than most: of an earlier test, or of a node with a wrong clock.
    Newer ones are of nodes that were repaired.
    """
    begun = {node.node: datetime.datetime.fromisoformat(node.started) for node in nodes}
    usual = statistics.median_low(begun.values()) if nodes else None
    for node, when in begun.items():
        if len(nodes) >= FEWEST and usual - when > A_DAY:
            yield _finding("stale", f"started {when}, half of the others after {usual}", node)


def copied_numbers(found: Iterable[Judged]) -> Iterator[Finding]:
    """Nodes with the rates of another node to the last digit, and those whose GPUs all have the
    same: two measurements never agree so.
    """
    places: dict[tuple[float, ...], list[str]] = defaultdict(list)
    for each in found:
        own: dict[str, list[float]] = defaultdict(list)
        for m in (number for check in each.checks for number in check.numbers):
            if m.device.startswith("cuda:") and m.unit in RATES:
                own[m.device].append(m.value)
        values = tuple(itertools.chain(*own.values()))
        if len(set(values)) >= MOST_EQUAL:
            places[values].append(each.report.node)
        of_gpus = [tuple(rates) for device, rates in own.items() if device.count(":") == 1]
        if len(of_gpus) > 2 and len(set(of_gpus)) == 1 and len(set(of_gpus[0])) > 2:
            yield _finding("copy", "all of its GPUs have the same numbers", each.report.node)
    for nodes in places.values():
        for node in nodes if len(nodes) > 1 else ():
            others = ", ".join(itertools.islice((n for n in nodes if n != node), MOST_NAMED))
            yield _finding("copy", f"all numbers of its GPUs are also those of {others}", node)


def _copies(nodes: Sequence[Node]) -> Iterator[Finding]:
    """GPUs and pods that the reports of two nodes claim, or one report twice: a finding on each of
    them, since one is a copy.
    """
    claims: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for node in nodes:
        claims[POD, node.pod].append((node.node, ""))
        # of Kubernetes, whatever somebody has typed
        name = "".join(sign for sign in node.node.lower() if sign.isprintable() and sign != " ")
        claims[NAME, name].append((node.node, ""))
        for gpu in node.gpus:
            claims["", gpu.uuid.strip().lower()].append((node.node, gpu.device))
        # one board may have several GPUs
        boards = {gpu.serial.strip(): gpu.device for gpu in node.gpus if gpu.serial.strip("0 \t")}
        for serial, device in boards.items():
            claims[SERIAL, serial].append((node.node, device))
    for (kind, value), places in claims.items():
        # What stands on several nodes identifies nothing: a cloud masks serials, a board of two
        # trays shares one.
        if not value or len(places) < 2 or (kind == SERIAL and len(places) > MOST_COPIES):
            continue
        for place in places:
            names = (" ".join(each).strip() for each in places if each != place)
            others = ", ".join(itertools.islice(names, MOST_NAMED))  # of maybe thousands
            words = f"{kind}{value} is also of {others}" if others else f"{value} is listed twice"
            yield _finding("copy", f"{words}: is this report a copy?", *place)
