"""Failure causes: the table from an observation to exit code, meaning and remedy.

The launcher ends by this table, and docs/ddp-run.md prints it (`python3 -m gpuworker.launch.failure_causes`).
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass

from gpuworker.launch.protocol import End
from gpuworker.runtime.contract import ExitCode


@dataclass(frozen=True)
class Cause:
    """One way for a run to end. `pattern` finds it in text that torchrun, c10d or NCCL wrote, never in other text.

    `kinds`: classes of exceptions that always have this cause. `secondary`: the cause only reports the failure of
    another rank, so it is never the root cause.
    """

    key: str
    code: ExitCode
    meaning: str
    remedy: str
    pattern: str = ""
    kinds: tuple[str, ...] = ()
    secondary: bool = False

    @property
    def restartable(self) -> bool:
        """Whether the program may be started again in the same pods: its own failure, not one of the launch."""
        return self.code in (ExitCode.FAILED, ExitCode.HANG) and self.key not in ("launcher-failed", "restart-loop")


CAUSES = [
    Cause("usage", ExitCode.USAGE, "a flag or a variable is wrong", "set what the line names"),
    Cause("program-usage", ExitCode.USAGE, "the program refused its flags or its data, with exit code 2",
          "read the lines of the first failing rank above"),
    # -- reaching node 0
    Cause("name-not-resolved", ExitCode.NAME_RESOLUTION, "the name of node 0 does not resolve",
          "check that pod 0 exists (kubectl get pods) and that this pod may use DNS (NetworkPolicy)",
          r"cannot be retrieved \(gai error|Name or service not known|Temporary failure in name resolution"),
    Cause("wrong-address", ExitCode.NAME_RESOLUTION,
          "the name of node 0 resolves to an address that node 0 does not have",
          "use pod 0's own DNS name, not the name of a Service with its own address or with several pods"),
    Cause("connection-refused", ExitCode.PORT, "node 0's port refuses connections: nothing listens",
          "look at pod 0: pending, image not pulled, still starting, or ended"),
    Cause("packets-dropped", ExitCode.PORT, "node 0's address does not answer: packets are dropped",
          "let the run's pods reach each other on all ports (NetworkPolicy, firewall), or look for a dead node 0",
          r"No route to host|connectFullMesh|timed out connecting|connect\w* .*Connection timed out"),
    Cause("connection-closed", ExitCode.PORT, "node 0's port accepts connections and closes them",
          "give all nodes the same key (has its Secret changed?); switch off a proxy or service mesh of the port"),
    Cause("no-response", ExitCode.PORT, "node 0's port accepts connections and sends nothing",
          "another program uses the port: choose another port"),
    Cause("foreign-service", ExitCode.PORT, "the program on node 0's port is not ddp-launch, or has no key",
          "choose another port; give all nodes a key or none"),
    Cause("other-run", ExitCode.PORT, "the launcher on node 0's port belongs to another run, or runs without this node",
          "two runs share an address (hostNetwork): give each another port; a second pod of an index: delete it"),
    Cause("port-in-use", ExitCode.PORT, "a port of this run is in use on node 0",
          "another program uses the port: choose another port", r"EADDRINUSE|[Aa]ddress already in use"),
    # -- all nodes, and all alike
    Cause("node-missing", ExitCode.NODE_MISSING, "nodes did not join in time",
          "kubectl describe pod: pending, image not pulled, ended early"),
    Cause("node-lost", ExitCode.NODE_LOST, "a node was lost during the run",
          "kubectl describe pod and node: evicted, out of memory, node down, or network cut"),
    Cause("nodes-differ", ExitCode.NODES_DIFFER, "nodes differ", "give all nodes the same image and values"),
    Cause("duplicate-node", ExitCode.NODES_DIFFER, "two pods claim the same node index",
          "delete the pod that is left over"),
    Cause("node-unfit", ExitCode.NODES_DIFFER, "a node lacks what the run requests",
          "repair or exclude the node, or request less"),
    Cause("interface-not-found", ExitCode.INTERFACE, "the network interface does not exist, or none leads to node 0",
          "leave the interface empty (it is taken from the route), or name one that the line lists",
          r"Unable to find address for|no socket interface found|Bootstrap : no socket interface"),
    # -- torchrun's own rendezvous
    Cause("world-not-formed", ExitCode.RENDEZVOUS, "all nodes joined, and torchrun formed no world",
          "set DEBUG_DISTRIBUTED=1 and read torchrun's lines above",
          r"RendezvousTimeoutError|clients joined|RendezvousConnectionError|connection to the C10d store has failed"),
    Cause("rendezvous-closed", ExitCode.RENDEZVOUS, "the rendezvous id was used before",
          "let the launcher choose it, or use another RUN_ID (of the chart: runName)", r"RendezvousClosedError"),
    Cause("etcd-unreachable", ExitCode.RENDEZVOUS, "etcd does not answer",
          "check that etcd runs and that this pod may reach it"),
    Cause("etcd-without-v2", ExitCode.RENDEZVOUS, "this etcd has no v2 API", "use etcd 3.4 or 3.5 with --enable-v2"),
    # -- the program
    Cause("collective-timeout", ExitCode.HANG, "a collective timed out",
          "look at the ranks that the line names",
          r"Watchdog caught collective operation timeout|Timed out (after )?waiting \d+ ?ms|wait timeout after \d+"
          r"|Collective .*timed out|monitoredBarrier|watchdog got stuck|[Tt]ime ?out waiting for key"),
    Cause("no-progress", ExitCode.HANG, "no rank made progress",
          "look at the places that the line names; raise the time-out if the work takes so long"),
    Cause("exit-timeout", ExitCode.HANG, "a rank's main program ended, and its process did not",
          "end or join the threads that the line names, or make them daemons"),
    Cause("disk-full", ExitCode.FAILED, "a disk is full", "free some space, or enlarge the volume"),
    Cause("shared-memory-full", ExitCode.FAILED, "/dev/shm is too small", "raise sharedMemory.sizeLimit",
          r"DataLoader worker .*[Bb]us error|unable to (mmap|allocate shared memory|write to file </torch_)"),
    Cause("gpu-out-of-memory", ExitCode.FAILED, "a GPU is out of memory", "use a smaller batch or model",
          r"(CUDA|HIP) out of memory|Cuda failure (2 )?'out of memory'",
          kinds=("torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError")),
    Cause("gpu-failed", ExitCode.FAILED, "a GPU failed", "test the node with gpu-accept before it is used again",
          r"uncorrectable ECC error|hardware stack error|unspecified launch failure|fallen off the bus|GPU is lost"
          r"|GPU requires reset|uncorrectable NVLink error|Cuda failure (214|220|719)\b"),
    Cause("out-of-memory", ExitCode.FAILED, "a rank was killed: the container is out of memory",
          "raise resources.limits.memory"),
    Cause("killed", ExitCode.FAILED, "a rank was ended by a signal", "look at the rank's last lines and at its node"),
    Cause("early-exit", ExitCode.FAILED, "a rank ended with 0 while other ranks still worked",
          "let all ranks run the same number of steps"),
    Cause("peer-lost", ExitCode.FAILED, "a rank lost the connection to another rank",
          "look at the rank that failed first",
          r"Connection (was )?(likely )?(closed|reset) by (remote )?peer|Broken pipe|[Cc]onnection refused"
          r"|ncclRemoteError"
          r"|remote process (exited|has)|[Ss]ocket closed|[Ff]ailed to recv, got 0 bytes|Read error|Write error"
          r"|closed the connection|NCCL communicator was aborted|ncclSystemError|unhandled system error"
          r"|torch\.distributed\.DistNetworkError",
          secondary=True),
    Cause("program-failed", ExitCode.FAILED, "the program failed", "read the lines of the first failing rank above"),
    Cause("restart-loop", ExitCode.FAILED, "the run starts again and again, without progress",
          "find out why it exits with 75 before its first step, or why it loses nodes"),
    Cause("launcher-failed", ExitCode.FAILED, "ddp-launch itself failed", "report it, with the traceback above"),
    # -- stopped from outside
    Cause("saved", ExitCode.SAVED, "stopped, and the program saved: start it again", "nothing"),
    Cause("stopped", ExitCode.STOPPED, "stopped before the program saved",
          "exit with 75 after saving on SIGTERM, within the grace period"),
]  # fmt: skip
BY_KEY = {cause.key: cause for cause in CAUSES}


class Verdict(Exception):
    """End of the run: a cause of the table, the observed fact as `reason`, and the phase of the launch."""

    def __init__(self, key: str, reason: str, phase: str = ""):
        super().__init__(reason)
        self.cause, self.reason, self.phase = BY_KEY[key], reason, phase

    @classmethod
    def of(cls, end: End) -> Verdict:
        """The verdict that the coordinator has sent."""
        return cls(end.cause, end.reason, end.phase)

    @property
    def code(self) -> int:
        return int(self.cause.code)

    def message(self) -> End:
        return End(self.cause.key, self.reason, self.phase)


# Marks that c10d, Gloo and NCCL leave in their messages. An exception of a program with the same words has none.
COMPONENT = re.compile(
    r"gloo/|ProcessGroup(Gloo|NCCL|UCC|XCCL|MPI)|NCCL|ncclComm|c10d|TCPStore|FileStore|CUDA|HIP|torch_"
)
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def of_text(text: str) -> Cause | None:
    """The first cause whose pattern matches text of torchrun, c10d or NCCL; a root cause before a secondary one."""
    found = [cause for cause in CAUSES if cause.pattern and re.search(cause.pattern, text)]
    return min(found, key=lambda cause: cause.secondary, default=None)


def of_exception(error: dict) -> Cause:
    """Cause of an exception by its classes, its errno and, only if torch raised it, its text."""
    kinds, reason = error["kinds"] or [""], error["reason"]
    for cause in CAUSES:
        if set(cause.kinds) & set(kinds):
            return cause
    if error["errno"] in DISK_FULL:
        return BY_KEY["disk-full"]
    # C++ errors arrive as RuntimeError or as a class of torch itself; OSError and its like are the program's own.
    from_torch = kinds[0].startswith("torch.") or (
        kinds[0] == "builtins.RuntimeError"
        and (COMPONENT.search(reason) or reason.startswith("RuntimeError: DataLoader worker"))
    )
    if from_torch and (found := of_text(reason)):
        return found
    if from_torch and kinds[0].startswith("torch.distributed."):
        return BY_KEY["peer-lost"]
    return BY_KEY["program-failed"]


def markdown() -> str:
    rows = [f"| {int(cause.code)} | `{cause.key}` | {cause.meaning} | {cause.remedy} |" for cause in CAUSES]
    return "\n".join(["| exit code | cause | meaning | remedy |", "|---|---|---|---|", *rows]) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
