"""Findings of one report: problems of its checks, and what its verdict lacks as evidence."""

from __future__ import annotations

import datetime

from gpuworker.accept.rejudge import Requested, objections
from gpuworker.accept.report import INCOMPLETE, PASS, WORLD
from gpuworker.fleet.check_findings import check_findings, node_places, world_name
from gpuworker.fleet.fleet_report import Finding, worst_verdict

CLOCK_TOLERANCE_S = 300  # nodes without a synchronised clock differ by minutes


def report_findings(
    report: dict, requested: Requested | None, received: datetime.datetime | None = None
) -> list[Finding]:
    """All findings of a report alone. `received`: now by default."""
    coverage, world = report["coverage"], report["scope"] == WORLD
    node, prefix = ("", f"{world_name(report)}: ") if world else (report["node"], "")
    found = [finding for check in report["checks"] for finding in check_findings(report, check)]

    def no_evidence(verdict: str, reason: str) -> None:
        found.append(Finding(verdict, prefix + reason, node, found_by="coverage"))

    for seen, wanted, unit in ("checks_reported", "checks_expected", "checks"), ("gpus_seen", "gpus_expected", "GPUs"):
        if coverage[seen] != coverage[wanted] and not found:
            no_evidence(INCOMPLETE, f"the report covers {coverage[seen]} of {coverage[wanted]} {unit}")
    if not world and report["device"] == "cuda" and not coverage["gpus_seen"] and not found:
        no_evidence(INCOMPLETE, "the report covers no GPU")
    if not any(check["verdict"] == PASS for check in report["checks"]) and not found:
        no_evidence(INCOMPLETE, "no check passed or failed")
    if worst_verdict(f.verdict for f in found) != report["verdict"] and not (report["verdict"] == PASS and not found):
        reason = f"no check has the verdict {report['verdict']} of the report: {report['reason'] or 'no reason given'}"
        no_evidence(worst_verdict([report["verdict"], INCOMPLETE]), reason)
    for check in report["checks"]:
        if check["verdict"] == PASS and (empty := [m["name"] for m in check["measurements"] if m["value"] is None]):
            no_evidence(INCOMPLETE, f"{check['name']}: no value of {', '.join(dict.fromkeys(empty))}")
    if (started(report) - (received or _now())).total_seconds() > CLOCK_TOLERANCE_S:
        no_evidence(INCOMPLETE, f"started {report['started']}, which is in the future: is the clock of the node right?")
    if requested and not world:
        found += _requested(report, requested)
    return found


def own_verdict(report: dict, findings: list[Finding]) -> str:
    """The verdict of a report with its own findings."""
    return worst_verdict([report["verdict"], *(finding.verdict for finding in findings)])


def started(report: dict) -> datetime.datetime:
    return datetime.datetime.fromisoformat(report["started"])


def _requested(report: dict, requested: Requested) -> list[Finding]:
    found = []
    by_name = {check["name"]: check for check in report["checks"]}
    for verdict, reason, name in objections(report, requested):
        check = by_name.get(name, {"measurements": []})
        for node, device in node_places(report, check, reason):
            found.append(Finding(verdict, reason.removeprefix(f"{device}: "), node, device, name, "coverage"))
    return found


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)
