"""Merge reports into one fleet report: evidence, fingerprints, outliers, baseline, and the verdict of every node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from gpuworker.accept.report import INCOMPLETE, NODE, WORLD
from gpuworker.fleet import fingerprint_vote, outliers
from gpuworker.fleet.check_findings import subject, world_name
from gpuworker.fleet.coverage import coverage_of, foreign, missing
from gpuworker.fleet.duplicates import duplicates
from gpuworker.fleet.evidence import own_verdict, report_findings, started
from gpuworker.fleet.expected import ANYTHING, Expected
from gpuworker.fleet.fleet_report import (
    WORST_FIRST,
    Curve,
    Finding,
    FingerprintGroup,
    Fleet,
    Node,
    World,
    natural_sort_key,
    worst_verdict,
)
from gpuworker.fleet.gpu_identity import identities
from gpuworker.fleet.port_differences import port_differences, ports_of
from gpuworker.fleet.power_limits import power_limits
from gpuworker.fleet.report_sources import Source
from gpuworker.fleet.suspects import suspects
from gpuworker.fleet.version_drift import version_drift


def merge(
    sources: Sequence[Source],
    expected: Expected = ANYTHING,
    thresholds: outliers.Thresholds = outliers.DEFAULT,
    baseline: Mapping[outliers.ValueKey, outliers.Known] | None = None,
) -> Fleet:
    """The fleet report. Everything that is missing, unreadable or not compared is named in it."""
    findings = [
        Finding(INCOMPLETE, f"{source.name}: {source.error}", found_by="coverage") for source in sources if source.error
    ]
    counted, notes = _one_per_subject([source for source in sources if source.report], expected)
    notes += [note for source in sources if not source.report for note in source.notes]
    reports, own_findings = [report for report, _ in counted], {subject(report): found for report, found in counted}
    findings += [finding for found in own_findings.values() for finding in found]
    node_reports = [report for report in reports if report["scope"] == NODE]
    nodes = [_node(report, own_findings[report["node"]], expected) for report in node_reports]
    worlds = [_world(report, own_findings[subject(report)]) for report in reports if report["scope"] == WORLD]
    coverage = coverage_of(nodes, expected)
    findings += missing(coverage, nodes, expected) + foreign(worlds, nodes) + duplicates(nodes)
    fingerprints = [each for report in node_reports for each in fingerprint_vote.fingerprints(report)]
    groups, mismatches = fingerprint_vote.vote(fingerprints)
    distributions = outliers.distributions(reports)
    findings += mismatches + [found for d in distributions for found in outliers.find_outliers(d, thresholds)]
    drift, drift_notes = version_drift(node_reports)
    findings += drift + port_differences(node_reports) + power_limits(node_reports)
    notes += drift_notes
    if baseline is not None:
        worse, note = outliers.compare_with_baseline(distributions, baseline, thresholds)
        findings += worse
        notes.append(note)
    verdicts: dict[str, set[str]] = defaultdict(set)
    for finding in findings:
        verdicts[finding.node].add(finding.verdict)
    for node in nodes:
        node.verdict = worst_verdict([node.reported_verdict, *verdicts[node.node]])
    findings.sort(key=_sort_key)
    if without_directions := [report["node"] for report in reports if report["schema_version"] == 2]:
        notes.append(f"reports of schema version 2: numbers of {', '.join(without_directions)} are shown, not compared")
    notes += _notes(nodes, worlds, groups)
    ports = {report["node"]: ports_of(report) for report in node_reports}
    parts = suspects(findings, nodes, ports)
    return Fleet(coverage, nodes, worlds, findings, distributions, groups, curves(reports), notes, parts)


def _sort_key(finding: Finding) -> tuple:
    node, device = natural_sort_key(finding.node), natural_sort_key(finding.device)
    return WORST_FIRST.index(finding.verdict), node, device, finding.check


def _one_per_subject(
    sources: Sequence[Source], expected: Expected
) -> tuple[list[tuple[dict, list[Finding]]], list[str]]:
    """One report per node or world with its findings, and a note for every report that does not count.

    The newest run counts. Of several reports of a node in this run the worst counts, since any of them may be wrong.
    """
    notes, by_subject = [], defaultdict(list)
    for source in sources:
        report = source.report
        if expected.run_id is not None and report["run_id"] != expected.run_id:
            run = f"run {report['run_id']}, not run {expected.run_id}"
            notes.append(f"{source.name}: ignored; node {report['node']}, {run}")
        else:
            found = source.findings
            found = report_findings(report, expected.requested) if found is None else list(found)
            by_subject[report["scope"], subject(report)].append((report, found))
        notes += source.notes
    counted = []
    for (scope, name), several in sorted(by_subject.items(), key=lambda item: natural_sort_key(item[0][1])):
        several.sort(key=lambda pair: started(pair[0]))
        used = several[-1]
        if scope == NODE:
            # Two runs may have started in one second.
            last = {pair[0]["run_id"] for pair in several if started(pair[0]) == started(used[0])}
            newest_runs = [pair for pair in several if pair[0]["run_id"] in last]
            used = min(reversed(newest_runs), key=lambda pair: WORST_FIRST.index(own_verdict(*pair)))
        if len({(report["run_id"], report["started"]) for report, _ in several}) > 1:
            which = "newest" if used is several[-1] else "worst"
            notes.append(f"{name}: the {which} of {len(several)} reports is used, started {used[0]['started']}")
        counted.append(used)
    return counted, notes


def _node(report: dict, findings: list[Finding], expected: Expected) -> Node:
    return Node(
        node=report["node"],
        pod=report["pod"],
        run_id=report["run_id"],
        device=report["device"],
        level=report["level"],
        started=report["started"],
        reported_verdict=own_verdict(report, findings),
        reason=report["reason"],
        checks={check["name"]: check["verdict"] for check in report["checks"]},
        gpus_expected=report["coverage"]["gpus_expected"],
        gpus_seen=report["coverage"]["gpus_seen"],
        injected=report["injected"],
        models=outliers.gpu_models(report),
        last_seen=expected.lost.get(report["node"], ""),
        gpus=identities(report),
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
        verdict=own_verdict(report, findings),
        reason=report["reason"],
        checks={check["name"]: check["verdict"] for check in report["checks"]},
        injected=report["injected"],
        findings=findings,
    )


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


def _notes(nodes: list[Node], worlds: list[World], fingerprints: list[FingerprintGroup]) -> list[str]:
    """Facts that a reader of the verdict needs."""
    injected = [(node.injected, node.node) for node in nodes] + [(world.injected, world.name) for world in worlds]
    notes = []
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
    if single := sum(group.devices == 1 for group in fingerprints):
        notes.append(f"{single} fingerprints were not compared: their group has one device")
    return notes
