"""Coverage of the fleet: which of the expected nodes reported, and which reports are of no expected node."""

from __future__ import annotations

from gpuworker.accept.report import INCOMPLETE, PASS, WARN
from gpuworker.fleet.expected import Expected
from gpuworker.fleet.fleet_report import Coverage, Finding, Node, World, natural_sort_key

MOST_NAMED = 3


def coverage_of(nodes: list[Node], expected: Expected) -> Coverage:
    known = {*expected.names, *(node for node, _ in expected.unreported.values() if node)}
    missing = sorted(known - {node.node for node in nodes}, key=natural_sort_key)
    count, requested = len(set(expected.names)) or expected.count, expected.requested
    return Coverage(
        nodes_expected=count,
        nodes_reported=len(nodes),
        missing=missing,
        gpus_expected=count * requested.gpus if count and requested else sum(node.gpus_expected for node in nodes),
        gpus_seen=sum(node.gpus_seen for node in nodes),
    )


def foreign(worlds: list[World], nodes: list[Node]) -> list[Finding]:
    """Worlds with nodes that are not of this fleet: what they show is of other hardware."""
    reported = {node.node for node in nodes}
    return [
        Finding(INCOMPLETE, f"{world.name}: {', '.join(others[:MOST_NAMED])} did not report", found_by="coverage")
        for world in worlds
        if world.verdict in (PASS, WARN) and (others := [name for name in world.nodes if name not in reported])
    ]


def missing(coverage: Coverage, nodes: list[Node], expected: Expected) -> list[Finding]:
    """Everything without which the fleet is not known completely."""

    def finding(reason: str, node: str = "") -> Finding:
        return Finding(INCOMPLETE, reason, node, found_by="coverage")

    found, explained = [], set()
    for name, (node, state) in expected.unreported.items():
        words = (
            "no report received from this expected node: "
            if node in coverage.missing
            else "no new report: "
            if node
            else ""
        )
        found.append(finding(f"{words}{f'pod {name} ' * bool(name)}{state}", node))
        explained.add(node)
    found += [
        finding("no report received from this expected node", node)
        for node in coverage.missing
        if node not in explained
    ]
    found += [finding(f"pod {pod} runs and has no report yet") for pod in expected.pending]
    found += [
        finding(f"its pod no longer exists, last seen {node.last_seen}", node.node) for node in nodes if node.last_seen
    ]
    if expected.names:
        found += [finding("not one of the expected nodes", n.node) for n in nodes if n.node not in set(expected.names)]
    if not coverage.nodes_reported and not found:
        found.append(finding("no node report received"))
    elif coverage.nodes_expected is None:
        found.append(finding("the number of nodes is not set (nodes, --expect-nodes): missing nodes are not detected"))
    elif 0 < coverage.nodes_reported < coverage.nodes_expected - len(coverage.missing):
        found.append(finding(f"{coverage.nodes_reported} of {coverage.nodes_expected} expected nodes reported"))
    elif coverage.nodes_reported > coverage.nodes_expected and not expected.names:
        numbers = f"{coverage.nodes_reported} nodes reported, more than the {coverage.nodes_expected} expected"
        found.append(finding(f"{numbers}: correct the number, or find the report that is not of this fleet"))
    return found
