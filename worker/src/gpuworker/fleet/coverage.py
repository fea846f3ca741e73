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
    return [
        Finding(
            INCOMPLETE,
            "foreign",
            f"{world.name}: {', '.join(others[:MOST_NAMED])} did not report",
            found_by="coverage",
        )
        for world in worlds
        if world.verdict in (PASS, WARN)
        and (others := [name for name in world.nodes if name not in reported])
    ]


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
    for name, (node, kind, state) in expected.unreported.items():
        words = (
            "no report received from this expected node: "
            if node in coverage.missing
            else "no new report: "
            if node
            else ""
        )
        found.append(finding(kind, f"{words}{f'pod {name} ' * bool(name)}{state}", node))
        explained.add(node)
    found += [
        finding("no-report", "no report received from this expected node", node)
        for node in coverage.missing
        if node not in explained
    ]
    found += [
        finding("pod-gone", f"nothing was heard of its pod since {node.last_seen}", node.node)
        for node in nodes
        if node.last_seen
    ]
    if expected.names:
        others = [node.node for node in nodes if node.node not in set(expected.names)]
        found += [finding("foreign", "not one of the expected nodes", name) for name in others]
    if not coverage.nodes_reported and not found:
        found.append(finding("no-report", "no node report received"))
    elif coverage.nodes_expected is None:
        words = (
            "the number of nodes is not set (nodes, --expect-nodes): missing nodes are not detected"
        )
        found.append(finding("nodes-expected", words))
    elif 0 < coverage.nodes_reported < coverage.nodes_expected - len(coverage.missing):
        words = f"{coverage.nodes_reported} of {coverage.nodes_expected} expected nodes reported"
        found.append(finding("no-report", words))
    elif coverage.nodes_reported > coverage.nodes_expected and not expected.names:
        numbers = f"{coverage.nodes_reported} nodes reported, more than the {coverage.nodes_expected} expected"
        found.append(
            finding(
                "nodes-expected",
                f"{numbers}: correct the number, or find the report that is not of this fleet",
            )
        )
    if expected.world and not worlds and not found:
        words = "no report of the checks across nodes, for which at least two nodes must pass"
        found.append(finding("no-world", words))
    return found
