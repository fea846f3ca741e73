"""Merge reports into one fleet report: coverage, fingerprints, outliers, baseline, and the verdict of every node."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuworker.accept.report import INCOMPLETE, NODE, PASS, WORLD
from gpuworker.fleet import fingerprint_vote, outliers
from gpuworker.fleet.check_findings import check_findings, subject, world_name
from gpuworker.fleet.fleet_report import (
    WORST_FIRST,
    Coverage,
    Curve,
    Finding,
    FingerprintGroup,
    Fleet,
    Node,
    World,
    natural_sort_key,
    worst_verdict,
)
from gpuworker.fleet.report_sources import Source
from gpuworker.fleet.version_drift import version_drift


@dataclass(frozen=True)
class Expected:
    """The nodes that must report, by name or by number. `run_id`: reports of other runs are ignored."""

    count: int | None = None
    names: Sequence[str] = ()
    run_id: str | None = None
    pending: Sequence[str] = ()  # pods that run and have no report yet
    lost: Mapping[str, str] = field(default_factory=dict)  # node -> when its pod, which no longer exists, was last seen


ANYTHING = Expected()


def merge(
    sources: Sequence[Source],
    expected: Expected = ANYTHING,
    thresholds: outliers.Thresholds = outliers.DEFAULT,
    baseline: Mapping[outliers.ValueKey, float] | None = None,
) -> Fleet:
    """The fleet report. Everything that is missing, unreadable or not compared is named in it."""
    findings = [
        Finding(INCOMPLETE, f"{source.name}: {source.error}", found_by="coverage") for source in sources if source.error
    ]
    reports, notes = _newest([source for source in sources if source.report], expected.run_id)
    own_findings = {subject(report): _report_findings(report) for report in reports}
    findings += [finding for found in own_findings.values() for finding in found]
    node_reports = [report for report in reports if report["scope"] == NODE]
    nodes = [_node(report, own_findings[report["node"]], expected) for report in node_reports]
    worlds = [_world(report, own_findings[subject(report)]) for report in reports if report["scope"] == WORLD]
    coverage = _coverage(nodes, expected)
    findings += _missing(coverage, expected)
    fingerprints = [each for report in node_reports for each in fingerprint_vote.fingerprints(report)]
    groups, mismatches = fingerprint_vote.vote(fingerprints)
    distributions = outliers.distributions(reports)
    findings += mismatches + [found for d in distributions for found in outliers.find_outliers(d, thresholds)]
    drift, drift_notes = version_drift(node_reports)
    findings += drift
    notes += drift_notes
    if baseline is not None:
        worse, note = outliers.compare_with_baseline(distributions, baseline, thresholds)
        findings += worse
        notes.append(note)
    for node in nodes:
        node.verdict = worst_verdict([node.reported_verdict, *(f.verdict for f in findings if f.node == node.node)])
    findings.sort(key=_sort_key)
    if without_directions := [report["node"] for report in reports if report["schema_version"] == 2]:
        notes.append(f"reports of schema version 2: numbers of {', '.join(without_directions)} are shown, not compared")
    notes += _notes(nodes, worlds, coverage, groups)
    return Fleet(coverage, nodes, worlds, findings, distributions, groups, curves(reports), notes)


def _sort_key(finding: Finding) -> tuple:
    node, device = natural_sort_key(finding.node), natural_sort_key(finding.device)
    return WORST_FIRST.index(finding.verdict), node, device, finding.check


def _newest(sources: Sequence[Source], run_id: str | None) -> tuple[list[dict], list[str]]:
    """One report per node or world, the one that started last, and a note for every report that is ignored."""
    notes, by_subject = [], defaultdict(list)
    for source in sources:
        report = source.report
        if run_id is not None and report["run_id"] != run_id:
            notes.append(f"{source.name}: ignored; node {report['node']}, run {report['run_id']}, not run {run_id}")
        else:
            by_subject[report["scope"], subject(report)].append(report)
    for (_, name), several in by_subject.items():
        several.sort(key=lambda report: datetime.datetime.fromisoformat(report["started"]))
        if len({report["started"] for report in several}) > 1:
            notes.append(f"{name}: the newest of {len(several)} reports is used, started {several[-1]['started']}")
    return [by_subject[key][-1] for key in sorted(by_subject, key=lambda key: natural_sort_key(key[1]))], notes


def _node(report: dict, findings: list[Finding], expected: Expected) -> Node:
    return Node(
        node=report["node"],
        pod=report["pod"],
        run_id=report["run_id"],
        device=report["device"],
        level=report["level"],
        started=report["started"],
        reported_verdict=worst_verdict([report["verdict"], *(f.verdict for f in findings)]),
        reason=report["reason"],
        checks={check["name"]: check["verdict"] for check in report["checks"]},
        gpus_expected=report["coverage"]["gpus_expected"],
        gpus_seen=report["coverage"]["gpus_seen"],
        injected=report["injected"],
        models=outliers.gpu_models(report),
        last_seen=expected.lost.get(report["node"], ""),
    )


def _world(report: dict, findings: list[Finding]) -> World:
    return World(
        name=world_name(report),
        nodes=[each["node"] for each in report["world"]["nodes"]],
        ranks=report["world"]["size"],
        run_id=report["run_id"],
        device=report["device"],
        level=report["level"],
        started=report["started"],
        verdict=worst_verdict([report["verdict"], *(f.verdict for f in findings)]),
        reason=report["reason"],
        checks={check["name"]: check["verdict"] for check in report["checks"]},
        injected=report["injected"],
        findings=findings,
    )


def _report_findings(report: dict) -> list[Finding]:
    """The findings of the report's checks, and where its verdict has no evidence in the report."""
    coverage, world = report["coverage"], report["scope"] == WORLD
    node, prefix = ("", f"{world_name(report)}: ") if world else (report["node"], "")
    found = [finding for check in report["checks"] for finding in check_findings(report, check)]

    def no_evidence(verdict: str, reason: str) -> None:
        found.append(Finding(verdict, prefix + reason, node, found_by="coverage"))

    for seen, wanted, unit in ("checks_reported", "checks_expected", "checks"), ("gpus_seen", "gpus_expected", "GPUs"):
        if coverage[seen] < coverage[wanted] and not found:
            no_evidence(INCOMPLETE, f"the report covers {coverage[seen]} of {coverage[wanted]} {unit}")
    if not any(check["verdict"] == PASS for check in report["checks"]) and not found:
        no_evidence(INCOMPLETE, "no check passed or failed")
    if worst_verdict(f.verdict for f in found) != report["verdict"] and not (report["verdict"] == PASS and not found):
        reason = f"no check has the verdict {report['verdict']} of the report: {report['reason'] or 'no reason given'}"
        no_evidence(worst_verdict([report["verdict"], INCOMPLETE]), reason)
    return found


def _coverage(nodes: list[Node], expected: Expected) -> Coverage:
    missing = sorted(set(expected.names) - {node.node for node in nodes}, key=natural_sort_key)
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

    found = [finding("no report received from this expected node", node) for node in coverage.missing]
    found += [finding(f"pod {pod} runs and has no report yet") for pod in expected.pending]
    if coverage.nodes_reported < (coverage.nodes_expected or 0) and not coverage.missing:
        found.append(finding(f"{coverage.nodes_reported} of {coverage.nodes_expected} expected nodes reported"))
    if not coverage.nodes_reported and not found:
        found.append(finding("no node report received"))
    return found


def curves(reports: list[dict]) -> list[Curve]:
    """Measures over message sizes: facts["curves"] = {name: {"unit": …, "points": [[bytes, value], …]}}."""
    found = []
    for report in reports:
        node = report["node"] if report["scope"] == NODE else world_name(report)
        for check in report["checks"]:
            for name, curve in check["facts"].get("curves", {}).items():
                points = sorted((float(size), float(value)) for size, value in curve["points"])
                found.append(Curve(node, check["name"], name, curve["unit"], points))
    return found


def _notes(
    nodes: list[Node], worlds: list[World], coverage: Coverage, fingerprints: list[FingerprintGroup]
) -> list[str]:
    """Facts that a reader of the verdict needs."""
    injected = [(node.injected, node.node) for node in nodes] + [(world.injected, world.name) for world in worlds]
    notes = []
    if coverage.nodes_expected is None:
        notes.append("expected number of nodes not set (--expect-nodes): missing nodes cannot be detected")
    elif coverage.nodes_reported > coverage.nodes_expected:
        notes.append(f"{coverage.nodes_reported} nodes reported, more than the {coverage.nodes_expected} expected")
    if any(each.device == "cpu" for each in [*nodes, *worlds]):
        notes.append("CPU rehearsal: no GPU was tested; speeds are not compared, since other programs use the CPUs")
    for what, values in (
        ("runs", {node.run_id for node in nodes}),
        ("levels", {node.level for node in nodes}),
        ("devices", {each.device for each in [*nodes, *worlds]}),
    ):
        if len(values) > 1:
            notes.append(f"the reports are of different {what}: {', '.join(sorted(values))}")
    for fault in sorted({fault for fault, _ in injected} - {""}):
        names = ", ".join(name for each, name in injected if each == fault)
        notes.append(f"the fault {fault} was injected ({names}): the verdict does not describe the hardware")
    notes += [f"{node.node}: its pod no longer exists, last seen {node.last_seen}" for node in nodes if node.last_seen]
    if single := sum(group.devices == 1 for group in fingerprints):
        notes.append(f"{single} fingerprints were not compared: their group has one device")
    return notes
