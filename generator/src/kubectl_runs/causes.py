"""Causes: what a rank waits for, or why it ended. Those of ddp-launch are its own, and stand in its message."""

# Code -> (meaning, remedy)
CAUSES = {
    # -- what a rank waits for
    "queue": ("Kueue holds the run until its queue has room for it", "see the queue: kubectl get localqueue,workload"),
    "node": ("no node can take the pod", "compare the pod's requests, selectors and tolerations with the nodes"),
    "scheduler": ("the scheduler has not looked at the pod yet", "wait, or check that kube-scheduler runs"),
    "image": ("the image cannot be pulled", "check its name, and the pull secret (imagePullSecrets)"),
    "container": ("the node prepares the container: it pulls images and mounts volumes", "wait"),
    "config": ("a Secret or ConfigMap that the pod needs is missing", "create it; the pod then starts by itself"),
    "refused": ("the node refuses to start the container", "change what the message names"),
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
    "not-accepted": ("the node did not pass its tests", "read its verdict, and the fleet page"),
    "evicted": ("the node evicted the pod", "request what the pod uses (memory, ephemeral-storage)"),
    "preempted": ("the pod was stopped from outside: preempted, drained or deleted", "nothing; start it again"),
    "node-lost": ("the pod's node does not answer", "look at the node; Kubernetes replaces the pod by itself"),
    "deadline": ("the Job's deadline has passed", "raise activeDeadlineSeconds"),
    "peer": ("the rank was ended because another one failed", "see that rank"),
    "gone": ("the rank failed, and its pod is gone", "see the log on logs.claimName, or start the group again"),
}
OF_LAUNCHER = ("ddp-launch has found the failure cause", "do what its message says")


def explain(cause: str) -> tuple[str, str]:
    """Meaning and remedy."""
    return CAUSES.get(cause, OF_LAUNCHER)
