"""Merge reports into one fleet report: evidence, fingerprints, outliers, and the verdict of
every node.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from gpuworker.judgement import outliers
from gpuworker.judgement.coverage import copied_numbers, coverage_of, is_foreign, not_covered
from gpuworker.judgement.differences import (
    Software,
    differences,
    ports_alike,
    slow_fabrics,
    software_of,
    versions_of,
    vote,
)
from gpuworker.judgement.findings import (
    Finding,
    findings_of,
    gpu_models,
    identities,
    ports_of,
    subject,
    world_name,
)
from gpuworker.judgement.fleet_report import (
    WORST_FIRST,
    Fleet,
    Node,
    World,
    natural_sort_key,
    worst_verdict,
)
from gpuworker.judgement.judge import Judged, judge, started
from gpuworker.judgement.report import INCOMPLETE, NODE, PASS, WARN, Report
from gpuworker.judgement.sources import ANYTHING, Expected, Source, that_counts
from gpuworker.judgement.suspects import causes, racks_of, suspects


def merge(sources: Sequence[Source], expected: Expected = ANYTHING) -> Fleet:
    """The fleet report. Everything that is missing, unreadable or not compared is named in it."""
    findings, notes, readable = [], [], []
    for source in sources:
        if source.report:
            readable.append(source)
            continue
        notes += source.notes
        if source.error:
            words = f"{source.name}: {source.error}"
            damaged = Finding(INCOMPLETE, "damaged-report", words, source.node, "", "", "coverage")
            findings.append(damaged)
    counted, ignored = _one_per_subject(readable, expected)
    reports = [each.report for each in counted if each.report.scope == NODE]
    voting = [each.report for each in counted if each.comparable and each.report.scope == NODE]
    mismatches, single = vote(voting)
    disagree = {each.node for each in mismatches if each.kind == "no-majority"}
    settled = {report.node for report in voting} - disagree
    shared = ports_alike(reports)
    of_nodes = [_by_fleet(e, shared, settled) for e in counted if e.report.scope == NODE]
    nodes = [_node(each, expected) for each in of_nodes]
    names = {node.node for node in nodes}
    of_worlds = [each for each in counted if each.report.scope != NODE]
    ours = [each for each in of_worlds if not is_foreign(_nodes_of(each.report), names)]
    findings += [finding for each in [*of_nodes, *ours] for finding in findings_of(each)]
    worlds = [_world(each) for each in of_worlds]
    coverage = coverage_of(nodes, expected)
    findings += not_covered(coverage, nodes, worlds, expected, {source.node for source in sources})
    numbered = [each for each in of_nodes if each.comparable and each.report.requested.gpus]
    findings += [*copied_numbers(numbered), *slow_fabrics(ours, reports)]
    distributions = outliers.distributions(each for each in counted if each.comparable)
    differ, without_majority = differences(reports)
    software = software_of(reports)
    findings = [_explained(finding, software) for finding in findings]
    for distribution in distributions:
        findings += outliers.find_outliers(distribution, software)
    findings += mismatches + differ
    verdicts: dict[str, set[str]] = defaultdict(set)
    for finding in findings:
        verdicts[finding.node].add(finding.verdict)
    for node in nodes:
        node.verdict = worst_verdict([node.reported_verdict, *verdicts[node.node]])
    findings.sort(key=_sort_key)
    notes = [*ignored, *notes, *without_majority, *_notes(nodes, worlds, single)]
    notes += _own_limits([each.report for each in counted], expected)
    parts = suspects(findings, nodes, {report.node: ports_of(report) for report in reports})
    names |= {*coverage.missing, *(each.node for each in parts)}
    racks = racks_of(sorted(names - {""}, key=natural_sort_key))
    rows = causes(parts, nodes, racks)
    devices = {each.device for each in [expected.requested, *nodes, *worlds] if each}
    return Fleet(
        coverage, nodes, worlds, findings, distributions, notes, parts, rows, racks,
        rehearsal="cpu" in devices,
    )  # fmt: skip


def _sort_key(finding: Finding) -> tuple:
    node, device = natural_sort_key(finding.node), natural_sort_key(finding.device)
    return WORST_FIRST.index(finding.verdict), node, device, finding.check


def _one_per_subject(
    sources: Sequence[Source], expected: Expected
) -> tuple[list[Judged], list[str]]:
    """One judged report per node or world, and a note for every report that does not count."""
    counted, notes = {}, []
    for source in sorted(sources, key=lambda source: started(source.report)):
        report = source.report
        if expected.run_id is not None and report.run_id != expected.run_id:
            run = f"run {report.run_id}, not run {expected.run_id}"
            notes.append(f"{source.name}: ignored; node {report.node}, {run}")
            continue
        judged = source.judged or judge(report, expected.requested)
        new, key = dataclasses.replace(source, judged=judged), (report.scope, subject(report))
        counted[key] = that_counts(counted[key], new) if key in counted else new
    found = [counted[key] for key in sorted(counted, key=lambda key: natural_sort_key(key[1]))]
    return [each.judged for each in found], [*notes, *(n for each in found for n in each.notes)]


def _node(judged: Judged, expected: Expected) -> Node:
    report = judged.report
    return Node(
        **_tested(judged),
        node=report.node,
        pod=report.pod,
        gpus_expected=report.requested.gpus,
        gpus_seen=len(report.models),
        models=gpu_models(report),
        last_seen=expected.lost.get(report.node, ""),
        gpus=identities(report),
        facts=versions_of(report),
        reported_verdict=judged.verdict,
    )


def _by_fleet(
    judged: Judged, shared: Mapping[tuple[str, str], str], settled: Collection[str]
) -> Judged:
    """What a node finds of a port is no fault of the node if most nodes have the same.

    Which of its GPUs has the wrong bits is shown by all of the fleet, and not by most of the node.
    """
    checks = []
    for check in judged.checks:
        problems = []
        for each in check.problems:
            if each.numbers.get("compared") and judged.report.node in settled:
                continue
            same = shared.get((judged.report.node, "".join(each.parts)))
            if same and each.kind in ("port-down", "port-slow"):
                words = f"{each.reason}; so on {same}"
                each = dataclasses.replace(each, verdict=WARN, kind="port-alike", reason=words)
            problems.append(each)
        if problems != check.problems:
            verdict = worst_verdict([PASS, *(each.verdict for each in problems)])
            reason = "; ".join(each.reason for each in problems)
            check = dataclasses.replace(check, verdict=verdict, reason=reason, problems=problems)
        checks.append(check)
    return dataclasses.replace(judged, checks=checks)


def _explained(finding: Finding, software: Mapping[str, Software]) -> Finding:
    """A number near its limit is no doubt about a part if the node has other software."""
    own = software.get(finding.node)
    if not own or not own.differs or (finding.kind, finding.verdict) != ("limit", WARN):
        return finding
    words = f"{finding.reason}; this node has {own.differs}"
    return dataclasses.replace(finding, kind="drift", reason=words)


def _nodes_of(report: Report) -> list[str]:
    return [each.node for each in report.world.nodes]


def _world(judged: Judged) -> World:
    report, name = judged.report, world_name(judged.report)
    nodes, ranks = _nodes_of(report), report.world.size
    return World(**_tested(judged), name=name, nodes=nodes, ranks=ranks)


def _tested(judged: Judged) -> dict[str, object]:
    report, asked = judged.report, judged.report.requested
    return {
        "run_id": report.run_id,
        "device": asked.device,
        "level": asked.level,
        "started": report.started,
        "verdict": judged.verdict,
        "reason": judged.reason,
        "checks": {check.name: check.verdict for check in judged.checks if check.name},
        "injected": asked.inject,
    }


def _own_limits(reports: list[Report], expected: Expected) -> list[str]:
    """Limits that are not those of the table: who reads PASS must know them."""
    asked = [expected.requested] if expected.requested else [each.requested for each in reports]
    own = {f"{key} {value:g}" for each in asked for key, value in each.limits.items()}
    return [f"judged by limits of the values or options: {', '.join(sorted(own))}"] if own else []


def _notes(nodes: list[Node], worlds: list[World], single: int) -> list[str]:
    """Facts that a reader of the verdict needs."""
    notes, tested = [], [*nodes, *worlds]
    if any(each.device == "cpu" for each in tested):
        notes.append(
            "CPU rehearsal: no GPU was tested; speeds are not compared,"
            " since other programs use the CPUs"
        )
    if len(runs := {node.run_id for node in nodes}) > 1:
        notes.append(f"the reports are of different runs: {', '.join(sorted(runs))}")
    injected: dict[str, list[str]] = defaultdict(list)
    for each in tested:
        injected[each.injected].append(each.node if isinstance(each, Node) else each.name)
    for fault, names in sorted(injected.items()):
        if fault:
            words = f"the fault {fault} was injected ({', '.join(names)})"
            notes.append(f"{words}: the verdict does not describe the hardware")
    if single:
        notes.append(f"{single} fingerprints were not compared: their group has one device")
    return notes
