"""Findings of one report: problems of its checks, and what its verdict lacks as evidence."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator

from gpuworker.accept.rejudge import Objection, Requested, objections, world_objections
from gpuworker.accept.report import INCOMPLETE, PASS, WORLD
from gpuworker.fleet.check_findings import check_findings, node_places, world_name, world_places
from gpuworker.fleet.fleet_report import Finding, worst_verdict

EARLIEST = datetime.datetime(2025, 1, 1, tzinfo=datetime.timezone.utc)  # this program is younger
ROUNDING_S = 1.0  # of times of checks
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
    if report["device"] == "cuda" and report.get("rehearsal"):
        no_evidence(INCOMPLETE, "the report says that it is a rehearsal and that its device is cuda")
    for check in report["checks"]:
        if check["verdict"] == PASS and (empty := [m["name"] for m in check["measurements"] if m["value"] is None]):
            no_evidence(INCOMPLETE, f"{check['name']}: no value of {', '.join(dict.fromkeys(empty))}")
    for problem in _clock_problems(report, received or _now()):
        no_evidence(INCOMPLETE, f"{problem}: is the clock of the node right?")
    if world:
        found += _placed(report, world_objections(report, requested), world_places)
    elif requested:
        found += _placed(report, objections(report, requested), node_places)
    return found


def _clock_problems(report: dict, received: datetime.datetime) -> Iterator[str]:
    """Times that cannot be."""
    begin, took_s = started(report), report["duration_s"] or 0
    passed = {check["name"]: check["duration_s"] or 0 for check in report["checks"] if check["verdict"] == PASS}
    since_s = (received - begin).total_seconds() + CLOCK_TOLERANCE_S
    if begin < EARLIEST:
        yield f"started {report['started']}, which is before there were such reports"
    if since_s < 0:
        yield f"started {report['started']}, which is in the future"
    elif took_s > since_s:
        yield f"took {took_s:.4g} s since {report['started']}, so it ends in the future"
    if timeless := [name for name, seconds in passed.items() if seconds <= 0]:
        yield f"{', '.join(timeless)}: measured in no time"
    if (sum_s := sum(passed.values())) > took_s + ROUNDING_S:
        yield f"took {took_s:.4g} s in all and {sum_s:.4g} s for its checks"


def own_verdict(report: dict, findings: list[Finding]) -> str:
    """The verdict of a report with its own findings."""
    return worst_verdict([report["verdict"], *(finding.verdict for finding in findings)])


def started(report: dict) -> datetime.datetime:
    return datetime.datetime.fromisoformat(report["started"])


def _placed(report: dict, found: Iterable[Objection], places: Callable[..., list[tuple[str, str]]]) -> list[Finding]:
    by_name = {check["name"]: check for check in report["checks"]}
    return [
        Finding(verdict, reason.removeprefix(f"{device}: "), node, device, name, "coverage")
        for verdict, reason, name in found
        for node, device in places(report, by_name.get(name, {"measurements": []}), reason)
    ]


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)
