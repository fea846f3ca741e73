"""State of a run: its ranks, and findings that explain what is wrong or what it waits for."""

from __future__ import annotations

from dataclasses import dataclass, field

# Phases of a rank, in the order of its life.
MISSING, QUEUED, PENDING, STARTING, WAITING, RUNNING = "missing", "queued", "pending", "starting", "waiting", "running"
DONE, FAILED, STOPPED, LOST = "done", "failed", "stopped", "lost"
PHASES = (FAILED, LOST, STOPPED, MISSING, QUEUED, PENDING, STARTING, WAITING, RUNNING, DONE)


@dataclass
class Rank:
    """One rank. `cause` is a code of CAUSES: what it waits for, or why it ended; empty if neither."""

    name: str
    task: str
    phase: str = MISSING
    cause: str = ""
    detail: str = ""  # of the cause, as Kubernetes or the program wrote it
    pod: str = ""
    node: str = ""
    exit_code: int | None = None
    started_at: str = ""
    ended_at: str = ""
    replaced: int = 0  # earlier pods of this rank that still exist
    primary: bool = True
    begun: bool = False  # its main container runs, or has run


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
    state: str
    ranks: list[Rank]
    findings: list[Finding] = field(default_factory=list)
    restarts: int = 0
    unreadable: list[str] = field(default_factory=list)


# Code -> (meaning, remedy). {} is the number of ranks, with the noun.
CAUSES = {
    # -- what a rank waits for
    "queue": (
        "Kueue holds the group until its queue has room for it",
        "see the queue: kubectl get localqueue,workload",
    ),
    "node": ("no node can take the pod", "compare the pod's requests, selectors and tolerations with the nodes"),
    "scheduler": ("the scheduler has not looked at the pod yet", "wait, or check that kube-scheduler runs"),
    "image": ("the image cannot be pulled", "check its name, and the pull secret (imagePullSecrets)"),
    "container": ("the node prepares the container: it pulls images and mounts volumes", "wait"),
    "config": ("a Secret or ConfigMap that the pod needs is missing", "create it; the pod then starts by itself"),
    "volume": ("a volume cannot be used", "check that the PersistentVolumeClaim exists, is bound and fits the nodes"),
    "sandbox": ("the node cannot create the pod's network or sandbox", "check the network plugin on the node"),
    "create": (
        "Kubernetes refuses to create the pod or its Job",
        "change what the message names (a field, quota, Pod Security, webhook)",
    ),
    "controller": ("no controller has created the pods yet", "wait, or check that JobSet's or the Job controller runs"),
    "barrier": ("the rank waits at the barrier until every other rank has started", "see what the others wait for"),
    "dependency": ("the rank waits for the tasks that it depends on", "see those tasks"),
    "replacement": ("the pod was stopped from outside; a new one replaces it", "wait"),
    "agent": ("the sidecar `agent` does not start", "see its log: kubectl logs POD -c agent"),
    # -- why a rank ended
    "program": ("the program failed", "read its last lines"),
    "command": ("the container cannot run its command", "check the command, the path and the image"),
    "out-of-memory": ("the container used more memory than its limit", "raise resources.limits.memory, or use less"),
    "signal": ("the program was ended by a signal", "look at its last lines and at its node"),
    "join-timeout": ("ranks did not start before the join timeout", "see why the ranks that the message names did not"),
    "launch": ("the launch failed on the way to a world", "do what the message names"),
    "hang": ("the program hangs: a collective, its progress or its end took too long", "look at the ranks it names"),
    "evicted": ("the node evicted the pod", "request what the pod uses (memory, ephemeral-storage)"),
    "preempted": ("the pod was stopped from outside: preempted, drained or deleted", "nothing; start it again"),
    "node-lost": ("the pod's node does not answer", "look at the node; Kubernetes replaces the pod by itself"),
    "deadline": ("the Job's deadline has passed", "raise activeDeadlineSeconds"),
    "peer": ("the rank was ended because another one failed", "see that rank"),
    "gone": ("the rank failed, and its pod is gone", "see the log on logs.claimName, or start the group again"),
}
