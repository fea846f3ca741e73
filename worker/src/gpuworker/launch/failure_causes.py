"""Failure causes: what can end a run, with exit code, meaning and remedy, and who may say so.

`make generate` writes the table into docs/ddp-run.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuworker.runtime.contract import ExitCode


@dataclass(frozen=True)
class Cause:
    """One way for a run to end.

    Causes of the launch and of a node (64 and above, without 70) are found by the launcher itself.
    What a rank's end can be the cause of is in rank_failure.py, and in nothing else.
    """

    key: str
    code: ExitCode
    meaning: str
    remedy: str

    @property
    def secondary(self) -> bool:
        """Whether it only reports another rank's failure, so that it is never the root cause."""
        return self.key == "peer-lost"

    @property
    def wanted(self) -> bool:
        return self.code in (ExitCode.DONE, ExitCode.SAVED)

    @property
    def restartable(self) -> bool:
        """Whether the program may start again in the same pods: it failed itself."""
        failed = self.code in (ExitCode.FAILED, ExitCode.HANG)
        return failed and self.key not in ("launcher-failed", "restart-loop")


# Exit code -> what ends a run with it: the cause, its meaning, and its remedy.
TABLE = {
    ExitCode.USAGE: [
        ("usage", "a flag or a variable is wrong", "set what the line names"),
    ],
    # -- reaching node 0
    ExitCode.NAME_RESOLUTION: [
        ("name-not-resolved",
         "the name of node 0 does not resolve",
         "check that pod 0 exists (kubectl get pods) and that this pod may use DNS "
         "(NetworkPolicy)"),
        ("wrong-address",
         "the name of node 0 resolves to an address that node 0 does not have",
         "use pod 0's own DNS name, not that of a Service with its own address or several pods"),
    ],
    ExitCode.PORT: [
        ("connection-refused",
         "node 0's port refuses connections: nothing listens",
         "look at pod 0: pending, image not pulled, still starting, or ended"),
        ("packets-dropped",
         "node 0's address does not answer: packets are dropped",
         "let the run's pods reach each other on all ports (NetworkPolicy, firewall), or look for "
         "a dead node 0"),
        ("connection-closed",
         "node 0's port accepts connections and closes them",
         "give all nodes the same key (has its Secret changed?); switch off a proxy or service "
         "mesh of the port"),
        ("no-response",
         "node 0's port accepts connections and sends nothing",
         "another program uses the port: choose another port"),
        ("foreign-service",
         "the program on node 0's port is not ddp-launch, or has no key",
         "choose another port; give all nodes a key or none"),
        ("other-run",
         "the launcher on node 0's port belongs to another run, or runs without this node",
         "two runs share an address (hostNetwork): give each another port; a second pod of an "
         "index: delete it"),
        ("port-in-use",
         "a port of this run is in use on node 0",
         "another program uses the port: choose another port"),
    ],
    # -- all nodes, and all alike
    ExitCode.NODE_MISSING: [
        ("node-missing",
         "nodes did not join in time",
         "kubectl describe pod: pending, image not pulled, ended early"),
    ],
    ExitCode.NODE_LOST: [
        ("node-lost",
         "a node was lost during the run",
         "kubectl describe pod and node: evicted, out of memory, node down, or network cut"),
    ],
    ExitCode.NODES_DIFFER: [
        ("nodes-differ", "nodes differ", "give all nodes the same image and values"),
        ("duplicate-node",
         "two pods claim the same node index", "delete the pod that is left over"),
        ("node-unfit",
         "a node lacks what the run requests", "repair or exclude the node, or request less"),
    ],
    ExitCode.NODE_UNFIT: [
        ("node-test-failed",
         "the test of a node before the start has failed",
         "do what the line names as act; keep pods off the node (kubectl cordon)"),
    ],
    ExitCode.INTERFACE: [
        ("interface-not-found",
         "the network interface does not exist, or none leads to node 0",
         "leave the interface empty (it is taken from the route), or name one that the line lists"),
    ],
    ExitCode.RENDEZVOUS: [
        ("slow-import",
         "ranks waited for one that was still importing its modules",
         "make the image's file system faster, or raise --collective-timeout"),
    ],
    # -- the program
    ExitCode.HANG: [
        ("collective-timeout", "a collective timed out", "look at the ranks that the line names"),
        ("no-progress",
         "no rank made progress",
         "look at the places that the line names; raise the time-out if the work takes so long"),
        ("exit-timeout",
         "a rank's main program ended, and its process did not",
         "end or join the threads that the line names, or make them daemons"),
    ],
    ExitCode.FAILED: [
        ("disk-full", "a disk is full", "free some space, or enlarge the volume"),
        ("shared-memory-full", "/dev/shm is too small", "raise sharedMemory.sizeLimit"),
        ("gpu-out-of-memory", "a GPU is out of memory", "use a smaller batch or model"),
        ("gpu-failed", "a GPU failed", "test the node with gpu-accept before it is used again"),
        ("out-of-memory",
         "a process was killed: the container is out of memory", "raise resources.limits.memory"),
        ("killed", "a rank was ended by a signal", "look at the rank's last lines and at its node"),
        ("early-exit",
         "a rank ended with 0 or 75 while other ranks still worked",
         "let all ranks run the same number of steps"),
        ("peer-lost",
         "a rank lost the connection to another rank", "look at the rank that failed first"),
        ("program-failed", "the program failed", "read the lines of the first failing rank above"),
        ("restart-loop",
         "the run starts again and again, without progress",
         "find out why it exits with 75 before its first step, or why it loses nodes"),
        ("launcher-failed", "ddp-launch itself failed", "report it, with the traceback above"),
    ],
    # -- the end that was wanted
    ExitCode.DONE: [
        ("done", "the program ended with 0 on every node", "nothing"),
    ],
    ExitCode.SAVED: [
        ("saved", "stopped, and the program saved: start it again", "nothing"),
    ],
    ExitCode.STOPPED: [
        ("stopped",
         "stopped before the program saved",
         "exit with 75 after saving on SIGTERM, within the grace period"),
    ],
}  # fmt: skip
CAUSES = [Cause(key, code, *texts) for code, rows in TABLE.items() for key, *texts in rows]
BY_KEY = {cause.key: cause for cause in CAUSES}


@dataclass
class Failure(Exception):
    """How a run, a node or a rank ended: the one record of it, also as a message between nodes.

    `reason`: the observed fact, for people. `rank`: whose it is, if it is one's. `asked`: a signal
    that asks for a stop ended the rank; it may have gone to all processes of the pod.
    """

    cause: str
    reason: str = ""
    rank: int | None = None
    asked: bool = False
    __hash__ = Exception.__hash__

    def __post_init__(self) -> None:
        BY_KEY[self.cause]  # KeyError: not a cause of the table

    @property
    def row(self) -> Cause:
        return BY_KEY[self.cause]

    @property
    def code(self) -> int:
        return int(self.row.code)
