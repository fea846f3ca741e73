"""State of a run, judged from a snapshot of its objects without a cluster."""

from __future__ import annotations

import re

from jobgen.observe import findings, model, pods
from jobgen.observe.model import Rank, Status
from jobgen.observe.snapshot import Plan, Snapshot, condition, is_true, labels, plan, pods_of

_RELEASED = re.compile(r"released_after_s=|waits_for=|dependencies_met_after_s=")


def judge(snapshot: Snapshot) -> Status | None:
    """Return the state of the newest run in the snapshot; None if it has none."""
    run = plan(snapshot)
    if run is None:
        return None
    ranks = _ranks(snapshot, run)
    _mark_waiting(snapshot, run, ranks)
    owner_status = (run.owner or {}).get("status") or {}
    restarts = max([owner_status.get("restarts", 0), *_attempts(snapshot, run)])
    status = Status(snapshot.name, run.chart, run.id, "", list(ranks.values()), restarts=restarts)
    status.unreadable = snapshot.unreadable
    _explain_missing(snapshot, run, status)
    status.state = _state(snapshot, run, status)
    status.findings = findings.find(snapshot, run, status)
    return status


def wanted_logs(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Return (pod, container) of the few logs that decide what the objects leave open: has the barrier opened?"""
    run = plan(snapshot)
    if run is None:
        return []
    found = []
    newest = {rank: each[0] for rank, each in pods_of(snapshot, run).items()}
    running = [rank for rank in run.ranks if rank in newest and _runs(newest[rank], run)]
    if len(running) < len(run.ranks) and running:
        found.append(running[0])
    for task in run.tasks.values():
        if task.depends_on:
            name = next(name for name, each in run.tasks.items() if each is task)
            found += [rank for rank in running if rank.rpartition("-")[0] == name][:1]
    return [(newest[rank]["metadata"]["name"], "agent") for rank in found if _has_agent(newest[rank])]


def _ranks(snapshot: Snapshot, run: Plan) -> dict[str, Rank]:
    found = pods_of(snapshot, run)
    ranks = {}
    for name in run.ranks:
        task = name.rpartition("-")[0]
        rank = ranks[name] = Rank(name, task, primary=run.tasks[task].primary)
        if name in found:
            pods.judge(rank, found[name][0], run.container)
            rank.replaced = len(found[name]) - 1
    return ranks


def _runs(pod: dict, run: Plan) -> bool:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return any(each["name"] == run.container and "running" in (each.get("state") or {}) for each in statuses)


def _has_agent(pod: dict) -> bool:
    """Whether the pod's rank waits at a barrier."""
    init = pod["spec"].get("initContainers") or []
    return any(each["name"] == "agent" and "--logs-only" not in (each.get("args") or []) for each in init)


def _waits_for_all(pod: dict) -> bool:
    """Whether the rank does nothing before the others have started: at the barrier, or in the launcher."""
    trainer = next((each for each in pod["spec"].get("containers") or [] if each["name"] == "trainer"), {})
    return _has_agent(pod) or any("ddp-launch" in str(word) for word in trainer.get("command") or [])


def _mark_waiting(snapshot: Snapshot, run: Plan, ranks: dict[str, Rank]) -> None:
    """Running ranks that wait at the barrier, or for a task that they depend on."""
    found = {rank: each[0] for rank, each in pods_of(snapshot, run).items()}
    running = [each for each in ranks.values() if each.phase == model.RUNNING and _waits_for_all(found[each.name])]
    late = [each.name for each in ranks.values() if not each.begun]
    logs = "".join(snapshot.logs.values())
    ended = any(each.begun and each.phase not in (model.RUNNING, model.LOST, model.STOPPED) for each in ranks.values())
    closed = bool(late) and not ended and not _RELEASED.search(logs)
    for rank in running:
        if closed:
            rank.phase, rank.cause, rank.detail = model.WAITING, "barrier", f"waits for {shortened(late)}"
    if closed:
        return
    for rank in running:
        pending = _pending_dependencies(snapshot, run, rank, ranks, found)
        if pending:
            rank.phase, rank.cause, rank.detail = model.WAITING, "dependency", ", ".join(pending)


def _pending_dependencies(
    snapshot: Snapshot, run: Plan, rank: Rank, ranks: dict[str, Rank], found: dict[str, dict]
) -> list[str]:
    log = next((text for pod, text in snapshot.logs.items() if run.rank_in(pod) == rank.name), "")
    if "dependencies_met_after_s=" in log:
        return []
    pending = []
    for task, state in run.tasks[rank.task].depends_on.items():
        others = [each for each in ranks.values() if each.task == task]
        reached = {
            "done": lambda each: each.phase == model.DONE,
            "ready": lambda each: each.phase == model.DONE or is_true(found.get(each.name, {}), "Ready"),
            "started": lambda each: each.begun and each.phase != model.WAITING,
        }[state]
        if not all(reached(each) for each in others):
            pending.append(f"{task} {state}")
    return pending


def _attempts(snapshot: Snapshot, run: Plan) -> list[int]:
    from jobgen.observe.snapshot import ATTEMPT

    return [int(labels(each[0]).get(ATTEMPT, 0)) for each in pods_of(snapshot, run).values()]


def _explain_missing(snapshot: Snapshot, run: Plan, status: Status) -> None:
    """Ranks without a pod: held by Kueue, refused by the API server, or not yet created."""
    held = _is_held(run)
    refused = {}
    for event in snapshot.events:
        if event.get("reason") == "FailedCreate":
            name = (event.get("involvedObject") or {}).get("name") or ""
            rank = run.rank_in(name) or (name if name == run.id else None)
            if rank:
                refused[rank] = event.get("message") or ""
        elif event.get("reason") == "JobCreationFailed":  # of a JobSet, with one line for each Job
            refused[run.id] = event.get("message") or ""
            for line in refused[run.id].splitlines():
                refused |= {rank: line for job, rank in run.jobs.items() if f'"{job}"' in line}
    jobs = {run.rank_in(each["metadata"]["name"]): each for each in snapshot.jobs}
    for rank in status.ranks:
        if rank.pod:
            continue
        job = jobs.get(rank.name, {})
        if is_true(job, "Complete"):
            rank.phase, rank.begun = model.DONE, True
        elif failed := condition(job, "Failed"):
            rank.phase, rank.begun, rank.ended_at = model.FAILED, True, failed.get("lastTransitionTime") or ""
            rank.cause = "deadline" if failed.get("reason") == "DeadlineExceeded" else "gone"
            rank.detail = failed.get("message") or ""
        elif is_true(run.owner or {}, "Failed"):  # which deletes the pods that still run
            rank.phase, rank.cause = model.STOPPED, "peer"
        elif held:
            rank.phase, rank.cause = model.QUEUED, "queue"
        elif rank.name in refused or run.id in refused:
            rank.cause, rank.detail = "create", refused.get(rank.name) or refused[run.id]
        else:
            rank.cause = "controller"


def _is_held(run: Plan) -> bool:
    """Whether the run is suspended, which Kueue does until its queue has room."""
    return bool(run.owner and (run.owner.get("spec") or {}).get("suspend"))


def _state(snapshot: Snapshot, run: Plan, status: Status) -> str:
    owner = run.owner or {}
    if is_true(owner, "Failed"):
        return model.FAILED
    if is_true(owner, "Completed") or is_true(owner, "Complete"):
        return model.DONE
    phases = [each.phase for each in status.ranks]
    primaries = [each for each in status.ranks if each.primary]
    if run.plain_jobs or not owner:
        if all(each.phase == model.DONE for each in primaries):
            return model.DONE
        if any(each.phase == model.FAILED and each.cause != "replacement" for each in primaries):
            return model.FAILED
    if owner.get("metadata", {}).get("deletionTimestamp"):
        return model.STOPPED
    if model.FAILED in (each.phase for each in primaries):
        return "restarting" if _restarts(run) else model.FAILED
    for phase in (model.QUEUED, model.PENDING, model.STARTING, model.MISSING, model.STOPPED, model.LOST, model.WAITING):
        if phase in phases and not (phase == model.WAITING and model.RUNNING in phases):
            named = {model.MISSING: model.PENDING, model.STOPPED: "restarting", model.LOST: "restarting"}
            return named.get(phase, phase)
    return model.DONE if all(phase == model.DONE for phase in phases) else model.RUNNING


def _restarts(run: Plan) -> bool:
    """Whether the JobSet may still restart the run."""
    spec, status = (run.owner or {}).get("spec") or {}, (run.owner or {}).get("status") or {}
    counted = status.get("restartsCountTowardsMax", status.get("restarts", 0))
    return counted < (spec.get("failurePolicy") or {}).get("maxRestarts", 0)


def shortened(names: list[str], limit: int = 5) -> str:
    """a, b, c and 7 more"""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
