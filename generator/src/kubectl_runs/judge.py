"""State of a run, and findings: one per reason, the first failure on top."""

import re
from dataclasses import dataclass, field

from kubectl_runs import pods
from kubectl_runs.remedies import OTHER, REMEDIES
from kubectl_runs.runs import ACCEPT, Objects, Rank, Run, attempt, condition, created, is_true

Warnings = dict[str, dict[str, str]]  # of a rank or of the run: reason -> message

CONSEQUENCES = ("peer", "barrier")  # what another finding explains
# Causes that say little -> reasons of warnings that say more.
EXPLAINED_BY = {
    "ContainerCreating": ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox"),
    "NoPod": ("FailedCreate", "JobCreationFailed"),
}
# What a run is called by the first of these phases that a rank has.
STATES = {
    "queued": "queued", "pending": "pending", "starting": "starting", "missing": "pending",
    "stopped": "restarting", "lost": "restarting", "waiting": "waiting",
}  # fmt: skip
HELD = {"QuotaReserved": "False", "Admitted": "False", "Evicted": "True"}  # of a workload
ENDS = {"Failed": "failed", "Completed": "done", "Complete": "done"}  # conditions of owners


@dataclass
class Finding:
    """One reason, and the ranks that it concerns. `first`: the failure that ended the run."""

    cause: str
    ranks: tuple[str, ...]
    detail: str = ""
    lines: tuple[str, ...] = ()  # the last ones that the rank printed
    exit_code: int | None = None
    first: bool = False
    remedy: str = ""

    def __post_init__(self) -> None:
        self.remedy = REMEDIES.get(self.cause, OTHER)


@dataclass
class Status:
    """`state`: queued, pending, starting, waiting, running, restarting, done, failed or stopped."""

    name: str
    chart: str
    id: str
    namespace: str
    created_at: str
    restarts: int
    ranks: list[Rank]
    state: str = ""
    findings: list[Finding] = field(default_factory=list)


def judge(run: Run, objects: Objects) -> Status:
    for name in run.pods.keys() & run.ranks.keys():
        pods.judge(run.ranks[name], run)
    warnings = warnings_of(run, objects["events"])
    mark_waiting(run)
    explain_missing(run, objects)
    blame(run)
    for rank in run.ranks.values():
        for reason, message in {**warnings.get(rank.name, {}), **warnings.get(run.id, {})}.items():
            if reason in EXPLAINED_BY.get(rank.cause, ()):
                rank.cause, rank.detail = reason, message
    counted = (run.owner.get("status") or {}).get("restarts", 0)
    restarts = max([counted, *map(attempt, run.pods.values())])
    place, ranks = run.owner["metadata"]["namespace"], list(run.ranks.values())
    status = Status(run.name, run.chart, run.id, place, created(run.owner), restarts, ranks)
    status.state = state_of(run, ranks)
    status.findings = findings(run, status, objects, warnings)
    return status


def warnings_of(run: Run, events: list[dict]) -> Warnings:
    """Reason and message of the warnings about each rank's Job and pod; those about the run are
    under its id.
    """
    found: Warnings = {}
    for event in events:
        name = event["involvedObject"].get("name") or ""
        about = found.setdefault(run.rank_in(name) or name, {})
        about[event.get("reason") or ""] = event.get("message") or ""
    return found


# Waiting


def waits_for_all(pod: dict) -> bool:
    """Whether the rank does nothing before the others have started: at the barrier, or in the
    launcher.
    """
    words = str([pod["spec"].get("initContainers"), pod["spec"]["containers"]])
    return "ddp-launch" in words or ("group-agent" in words and "--logs-only" not in words)


def mark_waiting(run: Run) -> None:
    """Running ranks that wait at the barrier. A rank that was replaced has passed it with all
    others.
    """
    ranks = run.ranks.values()
    late = [each.name for each in ranks if not each.begun and not each.replaced]
    for rank in ranks:
        if late and rank.phase == "running" and waits_for_all(run.newest(rank.name)):
            rank.phase, rank.cause = "waiting", "barrier"
            rank.detail = f"waits for {shortened(late)}"


def explain_missing(run: Run, objects: Objects) -> None:
    """Ranks without a pod: ended, stopped with the run, held by Kueue, or not yet created."""
    jobs = {
        run.rank_in(each["metadata"]["name"]): each
        for each in objects["jobs"] + objects["children"]
    }
    for rank in run.ranks.values():
        job = jobs.get(rank.name, {})
        if rank.pod or rank.cause:
            continue
        if is_true(job, "Complete"):
            rank.phase, rank.begun = "done", True
        elif failed := condition(job, "Failed"):
            rank.phase, rank.begun = "failed", True
            rank.cause, rank.detail = failed.get("reason") or "Error", failed.get("message") or ""
            rank.ended_at = failed.get("lastTransitionTime") or ""
        elif end := end_of(run.owner):  # which deletes the pods that still run
            rank.phase, rank.cause = "stopped", "peer" if end == "failed" else ""
        elif (run.owner.get("spec") or {}).get("suspend"):  # by Kueue, until its queue has room
            rank.phase, rank.cause = "queued", "Suspended"
        else:
            rank.cause = "NoPod"


def blame(run: Run) -> None:
    """A rank that failed and whose pod is gone is known by the messages of its peers."""
    for peer in [each for each in run.ranks.values() if each.cause == "peer"]:
        message = pods.PEER.search(peer.detail)
        rank = run.ranks.get(message[1]) if message else None
        if rank and not rank.pod:
            rank.phase, rank.cause, rank.detail = "failed", "PodDeleted", ""
            rank.exit_code, rank.ended_at, rank.begun = int(message[2]), peer.ended_at, True


# The whole run


def state_of(run: Run, ranks: list[Rank]) -> str:
    """The end that the run's object has; without such an object, that of its primary ranks."""
    owner, primaries = run.owner, [each for each in ranks if each.primary]
    is_alone = "spec" not in owner or run.chart == ACCEPT
    if end := end_of(owner):
        return end
    if owner["metadata"].get("deletionTimestamp"):
        return "stopped"
    if any(each.phase == "failed" for each in primaries):
        return "failed" if is_alone else "restarting"
    if ranks and all(each.phase == "done" for each in (primaries if is_alone else ranks)):
        return "done" if not run.page or is_true(run.page, "Ready") else "running"
    phases = {each.phase for each in ranks}
    if "running" in phases:
        phases.discard("waiting")
    return next((state for phase, state in STATES.items() if phase in phases), "running")


def end_of(owner: dict) -> str:
    return next((state for kind, state in ENDS.items() if is_true(owner, kind)), "")


# Findings


def findings(run: Run, status: Status, objects: Objects, warnings: Warnings) -> list[Finding]:
    """One for all ranks with the same cause and text; that of the first failure is on top."""
    failed = [each for each in status.ranks if each.phase == "failed"]
    own = [each for each in failed if each.cause != "peer"] or failed
    # Nodes under test fail each for itself.
    first = None if run.chart == ACCEPT else min(own, key=when_failed, default=None)
    alike: dict[tuple[str, str], dict[str, Rank]] = {}
    for rank in ([first] if first else []) + status.ranks:
        over = first and status.state == "failed" and rank.phase in ("stopped", "missing")
        if rank in own or (rank.cause not in ("", "peer") and not over):
            alike.setdefault((rank.cause, comparable(rank)), {})[rank.name] = rank
    found = []
    for (cause, _), ranks in alike.items():
        rank = next(iter(ranks.values()))
        detail, lines = rank.detail, rank.lines
        if rank.phase == "queued":
            detail = why_queued(run, objects) or detail
        if cause == "join-timeout":
            lines += what_kept(status.ranks, warnings)
        found.append(Finding(cause, tuple(ranks), detail, lines, rank.exit_code, rank is first))
    if run.page and not found and not is_true(run.page, "Ready") and run.ranks:
        found = [Finding("not-accepted", (run.name,), "the page has not accepted the fleet")]
    if status.state == "done":
        return [each for each in found if each.first]
    if status.state == "failed" and not found:  # its pods and Jobs are gone
        end = condition(run.owner, "Failed")
        found = [Finding(end.get("reason") or "Failed", (run.name,), end.get("message") or "")]
    return sorted(found, key=lambda each: (not each.first, each.cause in CONSEQUENCES))


def when_failed(rank: Rank) -> tuple[str, bool]:
    return rank.ended_at or "9", not rank.primary


def what_kept(ranks: list[Rank], warnings: Warnings) -> tuple[str, ...]:
    """What the cluster said of the ranks that did not start; their pods are gone."""
    late = [
        (each.name, warnings[each.name])
        for each in ranks
        if not each.begun and each.name in warnings
    ]
    return tuple(
        f"{name}: {': '.join(list(said.items())[-1])}" for name, said in late[: pods.LINES]
    )


def comparable(rank: Rank) -> str:
    """The detail without what differs between ranks of one reason: their names and numbers."""
    text = rank.detail.replace(rank.pod or rank.name, "POD").replace(rank.name, "RANK")
    return re.sub(r"\d+", "N", text)


def why_queued(run: Run, objects: Objects) -> str:
    """Why Kueue holds the run."""
    reasons = {}
    for workload in objects["workloads"]:
        about = workload["metadata"]
        if run.id not in (
            about["name"],
            *(each["name"] for each in about.get("ownerReferences", [])),
        ):
            continue
        for kind, wrong in HELD.items():
            found = condition(workload, kind)
            if found.get("status") == wrong and found.get("message"):
                reasons[f"{found.get('reason')}: {found['message']}"] = None
    return "; ".join(reasons)


def shortened(names: list[str] | tuple[str, ...], limit: int = 5) -> str:
    """a, b, c and 7 more"""
    return ", ".join(names[:limit]) + (
        f" and {len(names) - limit} more" if len(names) > limit else ""
    )
