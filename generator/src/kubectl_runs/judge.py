"""State of a run, and findings: one per reason, the first failure on top."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kubectl_runs import pods
from kubectl_runs.causes import CAUSES
from kubectl_runs.runs import ACCEPT, Rank, Run, attempt, condition, is_true

RELEASED = re.compile(r"released_after_s=|waits_for=|dependencies_met_after_s=")  # of the agent: the barrier is open
CONSEQUENCES = ("peer", "barrier", "dependency")  # what another finding explains
OF_EVENTS = {"FailedMount": "volume", "FailedAttachVolume": "volume", "FailedCreatePodSandBox": "sandbox"}
# What a run is called by the first of these phases that a rank has.
STATES = {
    "queued": "queued", "pending": "pending", "starting": "starting", "missing": "pending",
    "stopped": "restarting", "lost": "restarting", "waiting": "waiting",
}  # fmt: skip
LINES = 20  # of a rank's output
ReadLog = Callable[[str], str]


@dataclass(frozen=True)
class Finding:
    """One reason, and the ranks that it concerns. `first`: the failure that ended the run."""

    cause: str
    ranks: tuple[str, ...]
    detail: str = ""
    lines: tuple[str, ...] = ()  # the last ones that the rank printed
    exit_code: int | None = None
    first: bool = False


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


def judge(run: Run, objects: dict[str, list[dict]], read_log: ReadLog = lambda pod: "") -> Status:
    """The state of a run. `read_log`: the output of a pod's agent."""
    for name in run.pods.keys() & run.ranks.keys():
        pods.judge(run.ranks[name], run)
    mark_waiting(run, read_log)
    explain_missing(run, objects)
    add_events(run, objects)
    restarts = max([restarts_of(run.owner), *map(attempt, run.pods.values())])
    facts = run.owner["metadata"]
    ranks = list(run.ranks.values())
    place, created = facts.get("namespace") or "", facts.get("creationTimestamp") or ""
    status = Status(run.name, run.chart, run.id, place, created, restarts, ranks)
    status.state = state_of(run, ranks)
    for rank in ranks:
        if status.state == "done" and rank.cause == "controller":  # the group ended before it had a pod
            rank.phase, rank.cause = "stopped", ""
    status.findings = findings(run, status, objects)
    return status


# Waiting


def has_agent(pod: dict) -> bool:
    """Whether the pod's rank waits at a barrier."""
    init = pod["spec"].get("initContainers") or []
    return any(each["name"] == "agent" and "--logs-only" not in (each.get("args") or []) for each in init)


def waits_for_all(pod: dict) -> bool:
    """Whether the rank does nothing before the others have started: at the barrier, or in the launcher."""
    words = [each.get("command") or [] for each in pod["spec"].get("containers") or [] if each["name"] == "trainer"]
    return has_agent(pod) or any("ddp-launch" in str(word) for command in words for word in command)


def mark_waiting(run: Run, read_log: ReadLog) -> None:
    """Running ranks that wait at the barrier, or for a task that they depend on."""
    ranks = run.ranks.values()
    waiting = [each for each in ranks if each.phase == "running" and waits_for_all(run.newest(each.name))]
    late = [each.name for each in ranks if not each.begun]
    over = any(each.begun and each.phase not in ("running", "lost", "stopped") for each in ranks)
    # An agent's log has what the objects leave open.
    agents = [each.pod for each in waiting if has_agent(run.newest(each.name))]
    if late and not over and not (agents and RELEASED.search(read_log(agents[0]))):
        for rank in waiting:
            rank.phase, rank.cause, rank.detail = "waiting", "barrier", f"waits for {shortened(late)}"
        return
    for task, wanted in run.depends_on.items():
        mine = [each for each in waiting if each.task == task]
        pending = [f"{name} {state}" for name, state in wanted.items() if not reached(run, name, state)]
        if mine and pending and "dependencies_met_after_s=" not in read_log(mine[0].pod):
            for rank in mine:
                rank.phase, rank.cause, rank.detail = "waiting", "dependency", ", ".join(pending)


def reached(run: Run, task: str, state: str) -> bool:
    others = [each for each in run.ranks.values() if each.task == task]
    if state == "started":
        return all(each.begun and each.phase != "waiting" for each in others)
    ready = [state == "ready" and is_true(run.newest(each.name), "Ready") for each in others]
    return all(each.phase == "done" or is_ready for each, is_ready in zip(others, ready, strict=True))


def explain_missing(run: Run, objects: dict[str, list[dict]]) -> None:
    """Ranks without a pod: held by Kueue, refused by the API server, or not yet created."""
    refused = {}
    for event in objects["events"]:
        name, message = event["involvedObject"].get("name") or "", event.get("message") or ""
        if event.get("reason") == "FailedCreate":
            refused[run.rank_in(name) or name] = message
        elif event.get("reason") == "JobCreationFailed":  # of a JobSet, with one line for each Job
            refused[name] = message
            for line in message.splitlines():
                refused |= {rank: line for job, rank in run.jobs.items() if f'"{job}"' in line}
    jobs = {run.rank_in(each["metadata"]["name"]): each for each in objects["jobs"] + objects["children"]}
    for rank in run.ranks.values():
        job = jobs.get(rank.name, {})
        if rank.pod:
            continue
        if is_true(job, "Complete"):
            rank.phase, rank.begun = "done", True
        elif failed := condition(job, "Failed"):
            rank.phase, rank.begun, rank.ended_at = "failed", True, failed.get("lastTransitionTime") or ""
            rank.cause = "deadline" if failed.get("reason") == "DeadlineExceeded" else "gone"
            rank.detail = failed.get("message") or ""
        elif is_true(run.owner, "Failed"):  # which deletes the pods that still run
            rank.phase, rank.cause = "stopped", "peer"
        elif (run.owner.get("spec") or {}).get("suspend"):  # by Kueue, until its queue has room
            rank.phase, rank.cause = "queued", "queue"
        elif message := refused.get(rank.name) or refused.get(run.id):
            rank.cause, rank.detail = "create", message
        else:
            rank.cause = "controller"


def add_events(run: Run, objects: dict[str, list[dict]]) -> None:
    """The reason why a container is still being prepared, from its pod's warnings."""
    waiting = {each.pod: each for each in run.ranks.values() if each.cause == "container"}
    for event in objects["events"]:
        rank = waiting.get(event["involvedObject"].get("name") or "")
        if rank and event.get("reason") in OF_EVENTS:
            rank.cause, rank.detail = OF_EVENTS[event["reason"]], event.get("message") or ""


# The whole run


def state_of(run: Run, ranks: list[Rank]) -> str:
    owner, primaries = run.owner, [each for each in ranks if each.primary]
    if is_true(owner, "Failed"):
        return "failed"
    if is_true(owner, "Completed") or is_true(owner, "Complete"):
        return "done"
    failed = [each for each in primaries if each.phase == "failed"]
    if "spec" not in owner or run.chart == ACCEPT:  # no object has the state of all ranks
        if failed:
            return "failed"
        if ranks and all(each.phase == "done" for each in primaries):
            return "done"
    if owner["metadata"].get("deletionTimestamp"):
        return "stopped"
    if failed:
        # The pods of the next attempt may not exist yet.
        newest = max(attempt(run.pods.get(each.name, [])) for each in failed)
        return "restarting" if may_restart(owner) or newest < restarts_of(owner) else "failed"
    phases = {each.phase for each in ranks}
    if "running" in phases:
        phases.discard("waiting")
    if found := next((state for phase, state in STATES.items() if phase in phases), None):
        return found
    return "done" if phases == {"done"} else "running"


def restarts_of(owner: dict) -> int:
    return (owner.get("status") or {}).get("restarts", 0)


def may_restart(jobset: dict) -> bool:
    spec, status = jobset.get("spec") or {}, jobset.get("status") or {}
    counted = status.get("restartsCountTowardsMax", status.get("restarts", 0))
    return counted < (spec.get("failurePolicy") or {}).get("maxRestarts", 0)


# Findings


def findings(run: Run, status: Status, objects: dict[str, list[dict]]) -> list[Finding]:
    failed = [each for each in status.ranks if each.phase == "failed"]
    pointed = pointed_at(run, failed)
    found = [first_failure(failed, pointed)] if failed or pointed else []
    if run.chart == ACCEPT:
        found = []  # nodes fail each for itself
    if found and found[0].cause == "join-timeout":  # what kept the others from starting; their pods are gone
        found[0] = replace(found[0], lines=found[0].lines + warnings_of_late(run, objects))
    if status.state == "done":
        return found
    hidden = {"peer"} | ({"replacement", "controller", "preempted"} if status.state == "failed" else set())
    reported = {rank for each in found for rank in each.ranks}
    alike: dict[tuple[str, str], list[Rank]] = {}
    for rank in status.ranks:
        if rank.cause and rank.name not in reported and rank.cause not in hidden:
            alike.setdefault((rank.cause, comparable(rank)), []).append(rank)
    for (cause, _), ranks in alike.items():
        names, detail = tuple(each.name for each in ranks), ranks[0].detail
        detail = why_queued(run, objects) or detail if cause == "queue" else detail
        found.append(Finding(cause, names, detail, last_lines(ranks[0]), ranks[0].exit_code))
    return sorted(found, key=lambda each: each.cause in CONSEQUENCES)


def warnings_of_late(run: Run, objects: dict[str, list[dict]]) -> tuple[str, ...]:
    """The last warning about each rank that has not started."""
    last = {}
    for event in objects["events"]:
        rank = run.ranks.get(run.rank_in(event["involvedObject"].get("name") or "") or "")
        if rank and not rank.begun:
            last[rank.name] = f"{rank.name}: {event.get('reason')}: {event.get('message') or ''}"
    return tuple(last.values())[:LINES]


def first_failure(failed: list[Rank], pointed: tuple[str, int | None] | None) -> Finding:
    """The failure that came first: consequences and their pointers lead to it."""
    own = [each for each in failed if each.cause not in ("peer", "gone")]
    if not own and pointed and pointed[0] not in (each.name for each in failed if each.cause == "gone"):
        return Finding("gone", (pointed[0],), "its pod is gone", (), pointed[1], first=True)
    first = min(own or failed, key=lambda each: (each.ended_at or "9", not each.primary))
    names = [first.name]
    if first.cause == "join-timeout" or first.cause not in CAUSES:  # all nodes have the launcher's verdict
        names += [each.name for each in own if (each.cause, each.exit_code) == (first.cause, first.exit_code)]
    names = tuple(dict.fromkeys(names))
    return Finding(first.cause, names, headline(first), last_lines(first), first.exit_code, first=True)


def pointed_at(run: Run, failed: list[Rank]) -> tuple[str, int | None] | None:
    """The rank that failed first, and its exit code, as another rank's message or the JobSet names it."""
    for each in failed:
        if each.cause == "peer" and (match := pods.PEER.search(each.detail)) and match[1] in run.ranks:
            return match[1], int(match[2])
    if not is_true(run.owner, "Failed"):
        return None
    message = condition(run.owner, "Failed").get("message") or ""
    match = re.search(r"first failed job: ([\w.-]+)", message)
    rank = run.rank_in(match[1]) if match else None
    return (rank, None) if rank else None


def headline(rank: Rank) -> str:
    """The line of the message that explains the end: the missing ranks, the verdict, or the [FATAL] line."""
    lines = [line for line in rank.detail.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith("[FATAL]") or "these ranks were missing: " in line]
    return (fatal or (lines[:1] if rank.cause == "not-accepted" else lines[-1:]) or [""])[0]


def last_lines(rank: Rank) -> tuple[str, ...]:
    return tuple(rank.detail.splitlines()[-LINES:]) if rank.exit_code else ()


def comparable(rank: Rank) -> str:
    """The detail without what differs between ranks of one reason: names of pods, nodes and addresses."""
    return re.sub(r"\d+", "N", rank.detail.replace(rank.pod or "\0", "POD"))


def why_queued(run: Run, objects: dict[str, list[dict]]) -> str:
    """Why Kueue holds the run."""
    reasons = []
    for workload in objects["workloads"]:
        owners = [each["name"] for each in workload["metadata"].get("ownerReferences") or []]
        if run.id not in (workload["metadata"]["name"], *owners):
            continue
        for kind, wrong in (("QuotaReserved", "False"), ("Admitted", "False"), ("Evicted", "True")):
            found = condition(workload, kind)
            if found.get("status") == wrong and found.get("message"):
                reasons.append(f"{found.get('reason')}: {found['message']}")
    return "; ".join(dict.fromkeys(reasons))


def shortened(names: list[str] | tuple[str, ...], limit: int = 5) -> str:
    """a, b, c and 7 more"""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
