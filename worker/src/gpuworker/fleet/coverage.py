"""Coverage of the fleet: which of the expected nodes reported, and which reports are of no
expected node.
"""

from __future__ import annotations

from collections.abc import Collection

from gpuworker.fleet.expected import Expected
from gpuworker.fleet.fleet_report import Coverage, Finding, Node, World, natural_sort_key
from gpuworker.judgement.report import INCOMPLETE, PASS, WARN

MOST_NAMED = 3


def coverage_of(nodes: list[Node], expected: Expected) -> Coverage:
    known = {*expected.names, *(node for node, *_ in expected.unreported.values() if node)}
    missing = sorted(known - {node.node for node in nodes}, key=natural_sort_key)
    count, requested = len(set(expected.names)) or expected.count, expected.requested
    return Coverage(
        nodes_expected=count,
        nodes_reported=len(nodes),
        missing=missing,
        gpus_expected=count * requested.gpus
        if count and requested
        else sum(node.gpus_expected for node in nodes),
        gpus_seen=sum(node.gpus_seen for node in nodes),
    )


def foreign(worlds: list[World], nodes: list[Node]) -> list[Finding]:
    """Worlds with nodes that are not of this fleet: what they show is of other hardware."""
    reported = {node.node for node in nodes}
    found = []
    for world in worlds:
        others = [name for name in world.nodes if name not in reported]
        if others and world.verdict in (PASS, WARN):
            words = f"{world.name}: {', '.join(others[:MOST_NAMED])} did not report"
            found.append(Finding(INCOMPLETE, "foreign", words, found_by="coverage"))
    return found


def missing(
    coverage: Coverage,
    nodes: list[Node],
    worlds: list[World],
    expected: Expected,
    damaged: Collection[str] = (),
) -> list[Finding]:
    """Everything without which the fleet is not known completely.

    `damaged`: nodes whose report cannot be read.
    """

    def finding(kind: str, reason: str, node: str = "") -> Finding:
        return Finding(INCOMPLETE, kind, reason, node, found_by="coverage")

    found, explained = [], set(damaged)
    silent = "no report received from this expected node"
    for pod, (node, kind, state) in expected.unreported.items():
        words = f"{silent}: " if node in coverage.missing else "no new report: " * bool(node)
        found.append(finding(kind, f"{words}{f'pod {pod} ' * bool(pod)}{state}", node))
        explained.add(node)
    found += [
        finding("no-report", silent, name) for name in coverage.missing if name not in explained
    ]
    for node in nodes:
        if node.last_seen:
            words = f"nothing was heard of its pod since {node.last_seen}"
            found.append(finding("pod-gone", words, node.node))
        if expected.names and node.node not in expected.names:
            found.append(finding("foreign", "not one of the expected nodes", node.node))
    reported, wanted = coverage.nodes_reported, coverage.nodes_expected
    if not reported and not found:
        found.append(finding("no-report", "no node report received"))
    elif wanted is None:
        words = "the number of nodes is not set (nodes, --expect-nodes): "
        found.append(finding("nodes-expected", f"{words}missing nodes are not detected"))
    elif 0 < reported < wanted - len(coverage.missing):
        found.append(finding("no-report", f"{reported} of {wanted} expected nodes reported"))
    elif reported > wanted and not expected.names:
        words = f"{reported} nodes reported, more than the {wanted} expected: "
        words += "correct the number, or find the report that is not of this fleet"
        found.append(finding("nodes-expected", words))
    if expected.world and not worlds and not found:
        words = "no report of the checks across nodes, for which at least two nodes must pass"
        found.append(finding("no-world", words))
    return found
