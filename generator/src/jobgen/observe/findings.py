"""Findings of a run: one per reason, the first failure on top."""

from __future__ import annotations

import re

from jobgen.observe import model
from jobgen.observe.model import Finding, Rank, Status
from jobgen.observe.snapshot import Plan, Snapshot, condition

_CONSEQUENCES = ("peer", "barrier", "dependency")  # what another finding explains
_PEER = re.compile(r"failed (\S+) (\d+)")
_MISSING = re.compile(r"these ranks were missing: (.*)", re.DOTALL)
_LINES = 20  # of a rank's output


def find(snapshot: Snapshot, run: Plan, status: Status) -> list[Finding]:
    """Return what is wrong with a run, or what it waits for."""
    _add_events(snapshot, run, status)
    failed = [each for each in status.ranks if each.phase == model.FAILED]
    found = [_failure(run, status, failed, snapshot)] if failed or _failed_job(run) else []
    reported = {rank for each in found for rank in each.ranks}
    groups: dict[tuple[str, str], list[Rank]] = {}
    for rank in status.ranks:
        if rank.cause and rank.name not in reported and rank.cause != "peer":
            groups.setdefault((rank.cause, _comparable(rank)), []).append(rank)
    if status.state == model.DONE:
        groups = {}
    if status.state == model.FAILED:
        groups = {
            key: ranks for key, ranks in groups.items() if key[0] not in ("replacement", "controller", "preempted")
        }
    waits = [
        Finding(cause, tuple(each.name for each in ranks), ranks[0].detail, _lines(ranks[0]), ranks[0].exit_code)
        for (cause, _), ranks in groups.items()
    ]
    waits = [_with_queue(each, snapshot) if each.cause == "queue" else each for each in waits]
    return found + sorted(waits, key=lambda each: each.cause in _CONSEQUENCES)


def _failure(run: Plan, status: Status, failed: list[Rank], snapshot: Snapshot) -> Finding:
    """Return the failure that came first: consequences and their pointers lead to it."""
    own = [each for each in failed if each.cause not in ("peer", "gone")] or failed
    first = min(own, key=lambda each: (each.ended_at or "9", not each.primary)) if own else None
    pointed = _pointed(run, failed) if first is None or first.cause in ("peer", "gone") else None
    if pointed and (first is None or pointed[0] != first.name):
        name, code = pointed
        return Finding("gone", (name,), "its pod is gone", (), code, first=True)
    assert first is not None
    alike = [each.name for each in own if (each.cause, each.exit_code) == (first.cause, first.exit_code)]
    same = alike if first.cause in ("join-timeout", "launch", "hang") else [first.name]
    names = (first.name, *(each for each in same if each != first.name))
    return Finding(first.cause, names, headline(first), _lines(first), first.exit_code, first=True)


def _pointed(run: Plan, failed: list[Rank]) -> tuple[str, int | None] | None:
    """Return the rank that failed first, as another rank's message or the JobSet names it."""
    for each in failed:
        if each.cause == "peer" and (match := _PEER.search(each.detail)) and match[1] in run.ranks:
            return match[1], int(match[2])
    rank = _failed_job(run)
    return (rank, None) if rank else None


def _failed_job(run: Plan) -> str | None:
    """Return the rank whose Job failed first, as the JobSet names it."""
    failed = condition(run.owner or {}, "Failed")
    if failed.get("status") != "True":
        return None
    match = re.search(r"first failed job: ([\w.-]+)", failed.get("message") or "")
    return run.rank_in(match[1]) if match else None


def headline(rank: Rank) -> str:
    """Return the line of the message that explains the end: the missing ranks, the verdict, or the [FATAL] line."""
    lines = [line for line in rank.detail.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith("[FATAL]") or _MISSING.search(line)]
    return (fatal or lines[-1:] or [""])[0]


def _lines(rank: Rank) -> tuple[str, ...]:
    return tuple(rank.detail.splitlines()[-_LINES:]) if rank.exit_code else ()


def _comparable(rank: Rank) -> str:
    """Return the detail without what differs between ranks of one reason: names of pods, nodes and addresses."""
    text = rank.detail.replace(rank.pod, "POD") if rank.pod else rank.detail
    return re.sub(r"\d+", "N", text)


def _with_queue(finding: Finding, snapshot: Snapshot) -> Finding:
    """Add why Kueue holds the run."""
    reasons = []
    for workload in snapshot.workloads:
        for kind in ("QuotaReserved", "Admitted", "Evicted"):
            found = condition(workload, kind)
            wrong = "True" if kind == "Evicted" else "False"
            if found.get("status") == wrong and found.get("message"):
                reasons.append(f"{found.get('reason')}: {found['message']}")
    return Finding(finding.cause, finding.ranks, "; ".join(dict.fromkeys(reasons)) or finding.detail)


def _add_events(snapshot: Snapshot, run: Plan, status: Status) -> None:
    """Take the reason of ranks whose container is being prepared from their pods' warnings."""
    kinds = {"FailedMount": "volume", "FailedAttachVolume": "volume", "FailedCreatePodSandBox": "sandbox"}
    waiting = {each.pod: each for each in status.ranks if each.cause == "container"}
    for event in sorted(snapshot.events, key=lambda each: each.get("lastTimestamp") or each.get("eventTime") or ""):
        rank = waiting.get((event.get("involvedObject") or {}).get("name") or "")
        if rank and event.get("reason") in kinds:
            rank.cause, rank.detail = kinds[event["reason"]], event.get("message") or ""
