"""What to do about each cause: a reason of Kubernetes, or a word of the charts."""

_QUEUE = "see the queue: kubectl get localqueue,workload"
_IMAGE = "check the image's name, and the pull secret (imagePullSecrets)"
_COMMAND = "check the command, its path and the image"
_CREATE = "change what the message names (a field, quota, Pod Security, webhook)"
_VOLUME = (
    "check that the claim, Secret or ConfigMap of the message exists, and that a claim is bound"
)
_PREEMPTED = "nothing; another pod takes its place, or the run starts again"
_LINES = "read the program's last lines"
_GONE = "its pod is gone: see the log collector, or start it again"
_NODE = "look at the node; Kubernetes replaces the pod by itself"
REMEDIES = {
    # -- what a rank waits for
    "Suspended": _QUEUE,
    "SchedulingGated": _QUEUE,
    "Pending": "wait, or check that kube-scheduler runs",
    "Unschedulable": "compare the pod's requests, selectors, tolerations and volumes with the "
    "nodes",
    "ContainerCreating": "wait: the node pulls images and mounts volumes",
    "ErrImagePull": _IMAGE,
    "ImagePullBackOff": _IMAGE,
    "InvalidImageName": "write the image as REGISTRY/NAME:TAG, without https://",
    "ErrImageNeverPull": _IMAGE,
    "CreateContainerConfigError": "create the Secret or ConfigMap that the message names",
    "CreateContainerError": _COMMAND,
    "RunContainerError": _COMMAND,
    "CrashLoopBackOff": "see the log of the container that the message names: kubectl logs POD -c "
    "NAME",
    "FailedMount": _VOLUME,
    "FailedAttachVolume": _VOLUME,
    "FailedCreatePodSandBox": "check the network plugin on the node",
    "FailedCreate": _CREATE,
    "JobCreationFailed": _CREATE,
    "NoPod": "wait, or check that JobSet's or the Job controller runs",
    "NoNode": "compare nodes, nodeSelector and tolerations with kubectl get nodes --show-labels",
    "barrier": "see what the ranks wait for that have not started",
    # -- why a rank ended
    "Error": _LINES,
    "program-failed": _LINES,
    "OOMKilled": "raise resources.limits.memory, or use less",
    "StartError": _COMMAND,
    "ContainerCannotRun": _COMMAND,
    "join-timeout": "see why the ranks that the message names did not start",
    "not-accepted": "read the node's verdict, and the fleet page",
    "Terminating": _PREEMPTED,
    "PreemptionByScheduler": _PREEMPTED,
    "EvictionByEvictionAPI": _PREEMPTED,
    "Evicted": "request what the pod uses (memory, ephemeral-storage)",
    "TerminationByKubelet": "request what the pod uses (memory, ephemeral-storage)",
    "NodeLost": _NODE,
    "DeletionByTaintManager": _NODE,
    "DeletionByPodGC": _NODE,
    "DeadlineExceeded": "raise activeDeadlineSeconds",
    "peer": "see the rank that failed first",
    "BackoffLimitExceeded": _GONE,
    "PodDeleted": _GONE,
}
OTHER = "do what the message says"  # of Kubernetes, or of ddp-launch
