"""State of one pod: its phase, what it waits for, and why it ended."""

import re

from kubectl_runs.runs import ACCEPT, GROUP, Rank, Run, condition, is_true

# Reason why a container waits, or could not start -> cause
REASONS = {
    **dict.fromkeys(("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"), "image"),
    "RegistryUnavailable": "image",
    "CreateContainerConfigError": "config",
    **dict.fromkeys(("CreateContainerError", "RunContainerError", "StartError", "ContainerCannotRun"), "command"),
}
# Reason of a condition DisruptionTarget -> (phase, cause)
DISRUPTIONS = {
    "DeletionByTaintManager": ("lost", "node-lost"),
    "DeletionByPodGC": ("lost", "node-lost"),
    "TerminationByKubelet": ("stopped", "evicted"),
}
# Reason of a pod that has ended without an exit code -> (phase, cause)
ENDS = {"Evicted": ("failed", "evicted"), "NodeLost": ("lost", "node-lost"), "DeadlineExceeded": ("failed", "deadline")}
VERDICT = re.compile(r"exit code \d+ \(([a-z0-9-]+)\)")  # of ddp-launch, at the start of its message
PEER = re.compile(r"(?:stopped|not started): failed (\S+) (\d+)")
JOIN_TIMEOUT, NODE_LOST, SAVED, STOPPED = 66, 71, 75, 143


def judge(rank: Rank, run: Run) -> None:
    """Set the fields of `rank` by its newest pod."""
    pod = run.newest(rank.name)
    status, spec = pod.get("status") or {}, pod.get("spec") or {}
    rank.pod, rank.node = pod["metadata"]["name"], spec.get("nodeName") or ""
    rank.gpus, rank.replaced = gpus_of(spec), len(run.pods[rank.name]) - 1
    statuses = (status.get("containerStatuses") or []) + (status.get("initContainerStatuses") or [])
    main = next((each for each in statuses if each["name"] == run.container), {})
    state = main.get("state") or {}
    running, terminated = state.get("running"), state.get("terminated")
    rank.begun = "running" in state or "terminated" in state
    rank.started_at = (running or terminated or {}).get("startedAt") or ""
    disruption = condition(pod, "DisruptionTarget")
    if "terminated" in state:
        found = ended(rank, run, terminated, disruption)
    elif status.get("phase") in ("Failed", "Succeeded"):
        found = ended_without_container(rank, status, disruption)
    elif pod["metadata"].get("deletionTimestamp"):
        found = disrupted(disruption) or ("stopped", "replacement", "the pod is being deleted")
        found = lost(rank) if not disruption and is_silent(pod) else found
    elif not rank.node:
        found = unscheduled(pod)
    elif "running" in state:
        found = lost(rank) if is_silent(pod, main) else ("running", "", "")
    else:
        found = starting(status, state.get("waiting") or {})
    rank.phase, rank.cause, rank.detail = found


def gpus_of(spec: dict) -> int:
    amounts = [(each.get("resources") or {}).get("limits") or {} for each in spec.get("containers") or []]
    gpus = (amount for each in amounts for name, amount in each.items() if name.endswith("/gpu"))
    return sum(int(each) for each in gpus if str(each).isdecimal())


def ended(rank: Rank, run: Run, terminated: dict, disruption: dict) -> tuple[str, str, str]:
    code, message = terminated.get("exitCode", 0), terminated.get("message") or ""
    rank.exit_code, rank.ended_at = code, terminated.get("finishedAt") or ""
    if code == 0:
        return "done", "", message if run.chart == ACCEPT else ""
    if disruption:
        return disrupted(disruption, message)
    if code in ((STOPPED,) if run.chart == GROUP else (NODE_LOST, SAVED, STOPPED)):
        return "stopped", "replacement", message
    reason = terminated.get("reason") or ""
    if reason == "OOMKilled":
        cause = "out-of-memory"
    elif REASONS.get(reason) == "command" or code in (126, 127):
        cause = "command"
    elif run.chart == ACCEPT:
        cause = "not-accepted"
    elif PEER.search(message):
        cause = "peer"
    elif verdict := VERDICT.match(message):
        cause = verdict[1]
    elif code == JOIN_TIMEOUT and "ranks were missing" in message:
        cause = "join-timeout"
    else:
        cause = "signal" if code > 128 else "program"
    return "failed", cause, message


def ended_without_container(rank: Rank, status: dict, disruption: dict) -> tuple[str, str, str]:
    """The kubelet or a controller ended the pod, or a container before the main one failed."""
    reason, message = status.get("reason") or "", status.get("message") or ""
    if disruption:
        return disrupted(disruption, message)
    if reason in ENDS:
        return *ENDS[reason], message
    if status.get("phase") == "Succeeded":
        return "done", "", ""
    for name, state, _ in init_containers(status):
        end = state.get("terminated") or {}
        if end.get("exitCode"):
            rank.exit_code, rank.ended_at = end["exitCode"], end.get("finishedAt") or ""
            return "failed", "agent", f"{name}: {end.get('message') or ''}".strip()
    return "failed", "program", message or reason


def disrupted(disruption: dict, message: str = "") -> tuple[str, str, str] | None:
    if not disruption:
        return None
    phase, cause = DISRUPTIONS.get(disruption.get("reason"), ("stopped", "preempted"))
    said = disruption.get("message") or ""
    return phase, cause, (message or said) if cause == "evicted" else (said or message)


def lost(rank: Rank) -> tuple[str, str, str]:
    return "lost", "node-lost", f"node {rank.node}"


def is_silent(pod: dict, main: dict | None = None) -> bool:
    """Whether Kubernetes took back the pod's readiness although its container is ready: the kubelet is silent."""
    ready = condition(pod, "Ready").get("status")
    if (pod.get("status") or {}).get("reason") == "NodeLost" or ready == "Unknown":
        return True
    return bool(main and main.get("ready") and ready == "False" and not is_true(pod, "DisruptionTarget"))


def unscheduled(pod: dict) -> tuple[str, str, str]:
    scheduled, gates = condition(pod, "PodScheduled"), pod["spec"].get("schedulingGates") or []
    reason, message = scheduled.get("reason"), scheduled.get("message") or ""
    if gates or reason == "SchedulingGated":
        return "queued", "queue", ", ".join(each["name"] for each in gates)
    if reason != "Unschedulable":
        return "pending", "scheduler", message
    of_volume = re.search("persistentvolumeclaim|PersistentVolumeClaim|volume node affinity", message)
    return "pending", "volume" if of_volume and "Insufficient" not in message else "node", message


def starting(status: dict, waiting: dict) -> tuple[str, str, str]:
    for name, state, last in init_containers(status):
        reason = (state.get("waiting") or {}).get("reason")
        end = state.get("terminated") or last.get("terminated") or {}
        if reason == "CrashLoopBackOff" or end.get("exitCode"):
            return "starting", "agent", f"{name}: {end.get('message') or reason}"
        if reason not in (None, "PodInitializing", "ContainerCreating"):
            waiting = state["waiting"]
    reason, message = waiting.get("reason") or "", waiting.get("message") or ""
    cause = REASONS.get(reason, "container")
    if cause == "config" and not re.search("not found|couldn't find", message):  # such as a user that it must not have
        cause = "refused"
    return "starting", cause, message or (reason if cause == "image" else "")


def init_containers(status: dict) -> list[tuple[str, dict, dict]]:
    """Name, state and last state of each."""
    found = status.get("initContainerStatuses") or []
    return [(each["name"], each["state"], each.get("lastState") or {}) for each in found if each.get("state")]
