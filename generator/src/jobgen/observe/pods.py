"""State of one pod: its phase, what it waits for, and why it ended."""

from __future__ import annotations

import re

from jobgen.observe import model
from jobgen.observe.model import Rank
from jobgen.observe.snapshot import condition, is_true

_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
_CONFIG = ("CreateContainerConfigError",)
_COMMAND = ("CreateContainerError", "RunContainerError", "StartError", "ContainerCannotRun")
_VERDICT = re.compile(r"exit code (\d+) \(([a-z0-9-]+)\)")  # of ddp-launch, at the start of its termination message
_PEER = re.compile(r"(?:stopped|not started): failed (\S+) (\d+)")
JOIN_TIMEOUT, HANG, NODE_LOST, SAVED, STOPPED = 66, 70, 71, 75, 143


def judge(rank: Rank, pod: dict, container: str) -> None:
    """Set the fields of `rank` by its newest pod."""
    status = pod.get("status") or {}
    rank.pod = pod["metadata"]["name"]
    rank.node = (pod.get("spec") or {}).get("nodeName") or ""
    main = _status(status.get("containerStatuses"), container)
    state = main.get("state") or {}
    rank.begun = "running" in state or "terminated" in state
    rank.started_at = (state.get("running") or state.get("terminated") or {}).get("startedAt") or ""
    if "terminated" in state:
        _ended(rank, pod, state["terminated"], (STOPPED,) if container == "task" else (NODE_LOST, SAVED, STOPPED))
    elif status.get("phase") in ("Failed", "Succeeded"):
        _ended_without_container(rank, pod)
    elif pod["metadata"].get("deletionTimestamp"):
        _deleted(rank, pod)
    elif not rank.node:
        _unscheduled(rank, pod)
    elif "running" in state:
        _running(rank, pod, main)
    else:
        _starting(rank, status, state.get("waiting") or {})


def _status(statuses: list[dict] | None, name: str) -> dict:
    return next((each for each in statuses or [] if each.get("name") == name), {})


def _set(rank: Rank, phase: str, cause: str = "", detail: str | None = "") -> None:
    rank.phase, rank.cause, rank.detail = phase, cause, detail or ""


def _ended(rank: Rank, pod: dict, terminated: dict, stopped: tuple[int, ...]) -> None:
    code, message = terminated.get("exitCode", 0), terminated.get("message") or ""
    rank.exit_code, rank.ended_at = code, terminated.get("finishedAt") or ""
    if code == 0:
        return _set(rank, model.DONE)
    if disruption := condition(pod, "DisruptionTarget"):
        return _disrupted(rank, disruption, message)
    if code in stopped:
        return _set(rank, model.STOPPED, "replacement", message)
    return _set(rank, model.FAILED, _cause_of_end(code, terminated.get("reason") or "", message), message)


def _cause_of_end(code: int, reason: str, message: str) -> str:
    if reason == "OOMKilled":
        return "out-of-memory"
    if reason in _COMMAND or code in (126, 127):
        return "command"
    if _PEER.search(message):
        return "peer"
    if verdict := _VERDICT.match(message):
        return _cause_of_verdict(int(verdict[1]), verdict[2])
    if code == JOIN_TIMEOUT and "ranks were missing" in message:
        return "join-timeout"
    return "signal" if code > 128 else "program"


def _cause_of_verdict(code: int, key: str) -> str:
    """Return the cause of a verdict of ddp-launch; its message has the details."""
    if key in ("out-of-memory", "node-lost"):
        return key
    if key == "killed":
        return "signal"
    if key == "node-missing":
        return "join-timeout"
    if code == HANG:
        return "hang"
    return "launch" if 64 <= code < HANG else "program"


def _ended_without_container(rank: Rank, pod: dict) -> None:
    """The kubelet or a controller ended the pod: no container has an exit code."""
    status = pod["status"]
    reason, message = status.get("reason") or "", status.get("message") or ""
    if disruption := condition(pod, "DisruptionTarget"):
        _disrupted(rank, disruption, message)
    elif reason == "Evicted":
        _set(rank, model.FAILED, "evicted", message)
    elif reason == "NodeLost":
        _set(rank, model.LOST, "node-lost", message)
    elif reason == "DeadlineExceeded":
        _set(rank, model.FAILED, "deadline", message)
    elif status.get("phase") == "Succeeded":
        _set(rank, model.DONE)
    else:
        init = [each for each in _init(status) if "terminated" in each["state"]]
        failed = next((each for each in init if each["state"]["terminated"].get("exitCode")), None)
        if failed:
            rank.exit_code = failed["state"]["terminated"]["exitCode"]
            rank.ended_at = failed["state"]["terminated"].get("finishedAt") or ""
            message = f"{failed['name']}: {failed['state']['terminated'].get('message') or ''}".strip()
        _set(rank, model.FAILED, "agent" if failed else "program", message or reason)


def _disrupted(rank: Rank, disruption: dict, message: str) -> None:
    reason = disruption.get("reason") or ""
    detail = disruption.get("message") or message
    if reason in ("DeletionByTaintManager", "DeletionByPodGC"):
        return _set(rank, model.LOST, "node-lost", detail)
    if reason == "TerminationByKubelet":
        return _set(rank, model.STOPPED, "evicted", message or detail)
    return _set(rank, model.STOPPED, "preempted", detail)


def _deleted(rank: Rank, pod: dict) -> None:
    disruption = condition(pod, "DisruptionTarget")
    if disruption:
        _disrupted(rank, disruption, "")
    elif _node_is_silent(pod):
        _set(rank, model.LOST, "node-lost", f"node {rank.node}")
    else:
        _set(rank, model.STOPPED, "replacement", "the pod is being deleted")


def _unscheduled(rank: Rank, pod: dict) -> None:
    scheduled = condition(pod, "PodScheduled")
    gates = [each["name"] for each in pod.get("spec", {}).get("schedulingGates") or []]
    message = scheduled.get("message") or ""
    if gates or scheduled.get("reason") == "SchedulingGated":
        _set(rank, model.QUEUED, "queue", ", ".join(gates))
    elif scheduled.get("reason") == "Unschedulable":
        volume = re.search("persistentvolumeclaim|PersistentVolumeClaim|volume node affinity", message)
        _set(rank, model.PENDING, "volume" if volume and not re.search("Insufficient", message) else "node", message)
    else:
        _set(rank, model.PENDING, "scheduler", message)


def _running(rank: Rank, pod: dict, main: dict) -> None:
    if _node_is_silent(pod, main):
        _set(rank, model.LOST, "node-lost", f"node {rank.node}")
    else:
        _set(rank, model.RUNNING)


def _node_is_silent(pod: dict, main: dict | None = None) -> bool:
    """Whether Kubernetes took back the pod's readiness although its container is ready: the kubelet is silent."""
    ready = condition(pod, "Ready")
    if (pod.get("status") or {}).get("reason") == "NodeLost" or ready.get("status") == "Unknown":
        return True
    return bool(main and main.get("ready") and ready.get("status") == "False" and not is_true(pod, "DisruptionTarget"))


def _starting(rank: Rank, status: dict, waiting: dict) -> None:
    for each in _init(status):
        state = each["state"]
        reason = (state.get("waiting") or {}).get("reason")
        ended = state.get("terminated") or (each.get("lastState") or {}).get("terminated") or {}
        if reason == "CrashLoopBackOff" or ended.get("exitCode"):
            return _set(rank, model.STARTING, "agent", f"{each['name']}: {ended.get('message') or reason}")
        if reason not in (None, "PodInitializing", "ContainerCreating"):
            waiting = state["waiting"]
    reason, message = waiting.get("reason") or "", waiting.get("message") or ""
    if reason in _IMAGE:
        return _set(rank, model.STARTING, "image", message or reason)
    if reason in _CONFIG:
        return _set(rank, model.STARTING, "config", message)
    if reason in _COMMAND:
        return _set(rank, model.STARTING, "command", message)
    return _set(rank, model.STARTING, "container", message)


def _init(status: dict) -> list[dict]:
    return [each for each in status.get("initContainerStatuses") or [] if each.get("state")]
