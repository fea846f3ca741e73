"""State of one pod: its phase, what it waits for, and why it ended, by Kubernetes' own reasons."""

import re

from kubectl_runs.runs import ACCEPT, CONTAINERS, Rank, Run, condition, is_true

# of ddp-launch, at the start of its message
VERDICT = re.compile(r"exit code \d+ \(([a-z0-9-]+)\)")
PEER = re.compile(r"(?:stopped|not started): failed (\S+) (\d+)")
JOIN_TIMEOUT, STOPPED = 66, (75, 143)  # stopped and saved, stopped
LINES = 20  # of a rank's output
NODE_LOST = ("DeletionByTaintManager", "DeletionByPodGC", "NodeLost")
UNACCEPTED = ("FAIL", "INCOMPLETE")  # verdicts of accept-node, at the start of its message
PREPARES = (None, "PodInitializing", "ContainerCreating")


def judge(rank: Rank, run: Run) -> None:
    """Set the fields of `rank` by its newest pod."""
    pod = run.newest(rank.name)
    spec, status = pod["spec"], pod.get("status") or {}
    rank.pod, rank.node = pod["metadata"]["name"], spec.get("nodeName") or ""
    rank.gpus, rank.replaced = gpus_of(spec), len(run.pods[rank.name]) - 1
    statuses = (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or [])
    state = next((each["state"] for each in statuses if each["name"] == CONTAINERS[run.chart]), {})
    end = state.get("terminated")
    rank.begun = bool(state.keys() & {"running", "terminated"})
    rank.started_at = (state.get("running") or end or {}).get("startedAt") or ""
    rank.phase, rank.cause, rank.detail = phase_of(pod, run, statuses, state)
    if end:
        message = end.get("message") or ""
        rank.exit_code, rank.ended_at = end.get("exitCode", 0), end.get("finishedAt") or ""
        rank.lines = tuple(message.splitlines()[-LINES:])
        rank.detail = headline(run, message) or rank.detail
        if run.chart == ACCEPT and message.startswith(UNACCEPTED):
            rank.phase, rank.cause = "failed", "not-accepted"


def phase_of(pod: dict, run: Run, statuses: list[dict], state: dict) -> tuple[str, str, str]:
    """Phase, cause and detail; `state`: that of the main container."""
    status, spec, end = pod.get("status") or {}, pod["spec"], state.get("terminated")
    if status.get("phase") == "Succeeded" or (end and not end.get("exitCode")):
        return "done", "", ""
    if disruption := condition(pod, "DisruptionTarget"):
        return stopped(disruption.get("reason"), disruption.get("message"))
    if end:
        return failed(run, end)
    # Kubernetes took back the pod's readiness although its containers are ready.
    if is_true(pod, "ContainersReady") and condition(pod, "Ready").get("status") == "False":
        return "lost", "NodeLost", "its node does not answer"
    if status.get("phase") != "Failed" and pod["metadata"].get("deletionTimestamp"):
        return stopped("Terminating", "")
    if "running" in state:
        return "running", "", ""
    if "nodeName" in spec:
        return before_the_program(statuses, status)
    scheduled = condition(pod, "PodScheduled")
    reason = scheduled.get("reason") or "Pending"
    phase = "queued" if reason == "SchedulingGated" else "pending"
    return phase, reason, scheduled.get("message") or ""


def headline(run: Run, message: str) -> str:
    """The line that explains the end: the first of an acceptance, the [FATAL] line, or the last."""
    lines = [line for line in message.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith("[FATAL]")]
    return next(iter(lines if run.chart == ACCEPT else [*fatal, *lines[-1:]]), "")


def gpus_of(spec: dict) -> int:
    limits = [(each.get("resources") or {}).get("limits") or {} for each in spec["containers"]]
    amounts = [amount for each in limits for name, amount in each.items() if name.endswith("/gpu")]
    return sum(map(int, amounts))


def stopped(reason: str | None, message: str | None) -> tuple[str, str, str]:
    return "lost" if reason in NODE_LOST else "stopped", reason or "Terminating", message or ""


def failed(run: Run, end: dict) -> tuple[str, str, str]:
    code, message, cause = end["exitCode"], end.get("message") or "", end.get("reason") or "Error"
    verdict = VERDICT.match(message)
    if code in STOPPED:
        return stopped(verdict and verdict[1], message)
    if run.chart == ACCEPT:
        cause = "not-accepted"
    elif cause == "Error" and PEER.search(message):
        cause = "peer"
    elif cause == "Error" and (verdict or code == JOIN_TIMEOUT):
        cause = verdict[1] if verdict else "join-timeout"
    return "failed", cause, message


def before_the_program(statuses: list[dict], status: dict) -> tuple[str, str, str]:
    """What the first container that is not well waits for, or why it or the kubelet ended the
    pod.
    """
    has_failed = status.get("phase") == "Failed"
    for each in statuses:
        state, last = each["state"], each.get("lastState") or {}
        waiting, end = (
            state.get("waiting") or {},
            state.get("terminated") or last.get("terminated") or {},
        )
        message = f"{each['name']}: {end.get('message') or waiting.get('message') or ''}"
        if has_failed and end.get("exitCode"):
            return "failed", end.get("reason") or "Error", message
        if not has_failed and waiting.get("reason") not in PREPARES:
            return "starting", waiting["reason"], message
    if has_failed:
        return "failed", status.get("reason") or "Error", status.get("message") or ""
    return "starting", "ContainerCreating", ""
