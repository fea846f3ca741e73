"""From node reports to one result: coverage, votes, comparisons, and the verdict of every node."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuworker.accept.report import FAIL, INCOMPLETE, PASS, SKIP
from gpuworker.fleet import fingerprint_vote, outliers
from gpuworker.fleet.fleet_report import Coverage, Curve, Finding, Fleet, Node, natural, worst
from gpuworker.fleet.report_sources import Source
from gpuworker.fleet.version_drift import drift


@dataclass(frozen=True)
class Expected:
    """Which nodes must report: by name, or only how many. `run_id`: reports of other runs do not count."""

    count: int | None = None
    names: Sequence[str] = ()
    run_id: str | None = None
    testing: Sequence[str] = ()  # pods that are there and have no report yet
    gone: Mapping[str, str] = field(default_factory=dict)  # node -> when its pod, now gone, was last seen


ANYTHING = Expected()


def merge(
    sources: Sequence[Source],
    expected: Expected = ANYTHING,
    thresholds: outliers.Thresholds = outliers.DEFAULT,
    baseline: Mapping[outliers.Number, float] | None = None,
) -> Fleet:
    """The result of a fleet. Whatever is missing, unreadable or not judged is in it by name."""
    findings = [
        Finding(INCOMPLETE, f"{source.name}: {source.error}", found_by="coverage") for source in sources if source.error
    ]
    reports, notes = _newest([source for source in sources if source.report], expected.run_id)
    nodes = [_node(report, expected.gone.get(report["node"], "")) for report in reports]
    findings += [finding for report in reports for finding in _own_findings(report)]
    coverage = _coverage(nodes, expected)
    findings += _missing(coverage, expected)
    votes, odd = fingerprint_vote.vote(ballot for report in reports for ballot in fingerprint_vote.ballots(report))
    distributions = outliers.distributions(reports)
    findings += odd + [finding for d in distributions for finding in outliers.outliers(d, thresholds)]
    different, remarks = drift(reports)
    findings += different
    notes += remarks
    if baseline is not None:
        worse, note = outliers.against_baseline(distributions, baseline, thresholds)
        findings += worse
        notes.append(note)
    for node in nodes:
        found = [finding.verdict for finding in findings if finding.node == node.node]
        node.verdict = worst([node.own_verdict, *found])
    findings.sort(
        key=lambda f: (f.verdict != FAIL, f.verdict != INCOMPLETE, natural(f.node), natural(f.device), f.check)
    )
    return Fleet(
        coverage, nodes, findings, distributions, votes, curves(reports), [*notes, *_remarks(nodes, coverage, votes)]
    )


def _newest(sources: Sequence[Source], run_id: str | None) -> tuple[list[dict], list[str]]:
    """One report a node: the one that was started last. What does not count is said."""
    notes, by_node = [], defaultdict(list)
    for source in sources:
        report = source.report
        if run_id is not None and report["run_id"] != run_id:
            notes.append(
                f"{source.name}: run {report['run_id']} of {report['node']} is not counted; this is run {run_id}"
            )
        else:
            by_node[report["node"]].append(report)
    for node, several in by_node.items():
        several.sort(key=lambda report: datetime.datetime.fromisoformat(report["started"]))
        if len({report["started"] for report in several}) > 1:
            notes.append(f"{node}: {len(several)} reports; the newest counts, started {several[-1]['started']}")
    return [by_node[node][-1] for node in sorted(by_node, key=natural)], notes


def _node(report: dict, last_seen: str) -> Node:
    return Node(
        node=report["node"],
        pod=report["pod"],
        run_id=report["run_id"],
        device=report["device"],
        level=report["level"],
        started=report["started"],
        own_verdict=worst([report["verdict"], *(f.verdict for f in _own_findings(report))]),
        reason=report["reason"],
        checks={check["name"]: check["verdict"] for check in report["checks"]},
        gpus_expected=report["coverage"]["gpus_expected"],
        gpus_seen=report["coverage"]["gpus_seen"],
        injected=report.get("injected") or "",
        models=outliers.gpu_models(report),
        last_seen=last_seen,
    )


def _own_findings(report: dict) -> list[Finding]:
    """What the node says itself; and a PASS must be borne out by what the report holds."""
    node, coverage = report["node"], report["coverage"]
    found = [
        Finding(check["verdict"], check["reason"] or "no reason given", node, check=check["name"])
        for check in report["checks"]
        if check["verdict"] not in (PASS, SKIP)
    ]
    for what in ("checks_reported", "checks_expected"), ("gpus_seen", "gpus_expected"):
        have, wanted = (coverage[key] for key in what)
        if have < wanted and not found:
            reason = f"the report covers {have} of {wanted} {what[0].partition('_')[0]}"
            found.append(Finding(INCOMPLETE, reason, node, found_by="coverage"))
    if not any(check["verdict"] == PASS for check in report["checks"]) and not found:
        found.append(Finding(INCOMPLETE, "no check of this node passed or failed", node, found_by="coverage"))
    if worst([f.verdict for f in found]) != report["verdict"] and not (report["verdict"] == PASS and not found):
        reason = f"the report says {report['verdict']}, its checks do not: {report['reason'] or 'no reason given'}"
        found.append(Finding(worst([report["verdict"], INCOMPLETE]), reason, node, found_by="coverage"))
    return found


def _coverage(nodes: list[Node], expected: Expected) -> Coverage:
    missing = sorted(set(expected.names) - {node.node for node in nodes}, key=natural)
    return Coverage(
        nodes_expected=len(set(expected.names)) or expected.count,
        nodes_reported=len(nodes),
        missing=missing,
        gpus_expected=sum(node.gpus_expected for node in nodes),
        gpus_seen=sum(node.gpus_seen for node in nodes),
    )


def _missing(coverage: Coverage, expected: Expected) -> list[Finding]:
    def finding(reason: str, node: str = "") -> Finding:
        return Finding(INCOMPLETE, reason, node, found_by="coverage")

    found = [finding("expected, and no report came", node) for node in coverage.missing]
    found += [finding(f"pod {pod} is there and has no report yet") for pod in expected.testing]
    lack = (coverage.nodes_expected or 0) - coverage.nodes_reported
    if lack > 0 and not coverage.missing:
        found.append(finding(f"{coverage.nodes_reported} of {coverage.nodes_expected} expected nodes reported"))
    if not coverage.nodes_reported and not found:
        found.append(finding("no node reported"))
    return found


def curves(reports: list[dict]) -> list[Curve]:
    """What checks found over message sizes: facts["curves"] = {name: {"unit": …, "points": [[bytes, value], …]}}."""
    found = []
    for report in reports:
        for check in report["checks"]:
            for name, curve in check["facts"].get("curves", {}).items():
                points = sorted((float(size), float(value)) for size, value in curve["points"])
                found.append(Curve(report["node"], check["name"], name, curve["unit"], points))
    return found


def _remarks(nodes: list[Node], coverage: Coverage, votes: list) -> list[str]:
    """What a reader must know beside the verdict."""
    notes = []
    if coverage.nodes_expected is None:
        notes.append("nobody said how many nodes there are, so a node that is missing would not be noticed")
    elif coverage.nodes_reported > coverage.nodes_expected:
        notes.append(f"{coverage.nodes_reported} nodes reported, more than the {coverage.nodes_expected} expected")
    if any(node.device == "cpu" for node in nodes):
        notes.append(
            "a CPU rehearsal: no GPU was tested, and speeds are not compared, since CPUs are shared with others"
        )
    for what, values in (
        ("runs", {node.run_id for node in nodes}),
        ("levels", {node.level for node in nodes}),
        ("devices", {node.device for node in nodes}),
    ):
        if len(values) > 1:
            notes.append(f"nodes of different {what} are mixed: {', '.join(sorted(values))}")
    for fault in sorted({node.injected for node in nodes} - {""}):
        names = ", ".join(node.node for node in nodes if node.injected == fault)
        notes.append(f"the fault {fault} was put in on purpose ({names}): this is no verdict on the hardware")
    notes += [
        f"{node.node}: its pod is gone; this is what it said, last seen {node.last_seen}"
        for node in nodes
        if node.last_seen
    ]
    alone = sum(ballot.voters == 1 for ballot in votes)
    if alone:
        notes.append(f"{alone} fingerprints have one device in their group: nothing to compare them with")
    return notes
