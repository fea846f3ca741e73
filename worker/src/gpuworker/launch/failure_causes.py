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
    `secondary`: it only reports the failure of another rank, so it is never the root cause.
    """

    key: str
    code: ExitCode
    meaning: str
    remedy: str
    secondary: bool = False

    @property
    def wanted(self) -> bool:
        return self.code in (ExitCode.DONE, ExitCode.SAVED)

    @property
    def restartable(self) -> bool:
        """Whether the program may start again in the same pods: it failed itself."""
        failed = self.code in (ExitCode.FAILED, ExitCode.HANG)
        return failed and self.key not in ("launcher-failed", "restart-loop")


CAUSES = [
    Cause("usage", ExitCode.USAGE, "a flag or a variable is wrong", "set what the line names"),
    # -- reaching node 0
    Cause("name-not-resolved", ExitCode.NAME_RESOLUTION, "the name of node 0 does not resolve",
          "check that pod 0 exists (kubectl get pods) "
          "and that this pod may use DNS (NetworkPolicy)"),
    Cause("wrong-address", ExitCode.NAME_RESOLUTION,
          "the name of node 0 resolves to an address that node 0 does not have",
          "use pod 0's own DNS name, not that of a Service with its own address or several pods"),
    Cause("connection-refused", ExitCode.PORT, "node 0's port refuses connections: nothing listens",
          "look at pod 0: pending, image not pulled, still starting, or ended"),
    Cause("packets-dropped", ExitCode.PORT,
          "node 0's address does not answer: packets are dropped",
          "let the run's pods reach each other on all ports (NetworkPolicy, firewall), "
          "or look for a dead node 0"),
    Cause("connection-closed", ExitCode.PORT, "node 0's port accepts connections and closes them",
          "give all nodes the same key (has its Secret changed?); "
          "switch off a proxy or service mesh of the port"),
    Cause("no-response", ExitCode.PORT, "node 0's port accepts connections and sends nothing",
          "another program uses the port: choose another port"),
    Cause("foreign-service", ExitCode.PORT,
          "the program on node 0's port is not ddp-launch, or has no key",
          "choose another port; give all nodes a key or none"),
    Cause("other-run", ExitCode.PORT,
          "the launcher on node 0's port belongs to another run, or runs without this node",
          "two runs share an address (hostNetwork): give each another port; "
          "a second pod of an index: delete it"),
    Cause("port-in-use", ExitCode.PORT, "a port of this run is in use on node 0",
          "another program uses the port: choose another port"),
    # -- all nodes, and all alike
    Cause("node-missing", ExitCode.NODE_MISSING, "nodes did not join in time",
          "kubectl describe pod: pending, image not pulled, ended early"),
    Cause("node-lost", ExitCode.NODE_LOST, "a node was lost during the run",
          "kubectl describe pod and node: evicted, out of memory, node down, or network cut"),
    Cause("nodes-differ", ExitCode.NODES_DIFFER, "nodes differ",
          "give all nodes the same image and values"),
    Cause("duplicate-node", ExitCode.NODES_DIFFER, "two pods claim the same node index",
          "delete the pod that is left over"),
    Cause("node-unfit", ExitCode.NODES_DIFFER, "a node lacks what the run requests",
          "repair or exclude the node, or request less"),
    Cause("node-test-failed", ExitCode.NODE_UNFIT, "the test of a node before the start has failed",
          "do what the line names as act; keep pods off the node (kubectl cordon)"),
    Cause("interface-not-found", ExitCode.INTERFACE,
          "the network interface does not exist, or none leads to node 0",
          "leave the interface empty (it is taken from the route), "
          "or name one that the line lists"),
    Cause("slow-import", ExitCode.RENDEZVOUS,
          "ranks waited for one that was still importing its modules",
          "make the image's file system faster, or raise --collective-timeout"),
    # -- the program
    Cause("collective-timeout", ExitCode.HANG, "a collective timed out",
          "look at the ranks that the line names"),
    Cause("no-progress", ExitCode.HANG, "no rank made progress",
          "look at the places that the line names; raise the time-out if the work takes so long"),
    Cause("exit-timeout", ExitCode.HANG, "a rank's main program ended, and its process did not",
          "end or join the threads that the line names, or make them daemons"),
    Cause("disk-full", ExitCode.FAILED, "a disk is full", "free some space, or enlarge the volume"),
    Cause("shared-memory-full", ExitCode.FAILED, "/dev/shm is too small",
          "raise sharedMemory.sizeLimit"),
    Cause("gpu-out-of-memory", ExitCode.FAILED, "a GPU is out of memory",
          "use a smaller batch or model"),
    Cause("gpu-failed", ExitCode.FAILED, "a GPU failed",
          "test the node with gpu-accept before it is used again"),
    Cause("out-of-memory", ExitCode.FAILED, "a process was killed: the container is out of memory",
          "raise resources.limits.memory"),
    Cause("killed", ExitCode.FAILED, "a rank was ended by a signal",
          "look at the rank's last lines and at its node"),
    Cause("early-exit", ExitCode.FAILED, "a rank ended with 0 or 75 while other ranks still worked",
          "let all ranks run the same number of steps"),
    Cause("peer-lost", ExitCode.FAILED, "a rank lost the connection to another rank",
          "look at the rank that failed first", secondary=True),
    Cause("program-failed", ExitCode.FAILED, "the program failed",
          "read the lines of the first failing rank above"),
    Cause("restart-loop", ExitCode.FAILED, "the run starts again and again, without progress",
          "find out why it exits with 75 before its first step, or why it loses nodes"),
    Cause("launcher-failed", ExitCode.FAILED, "ddp-launch itself failed",
          "report it, with the traceback above"),
    # -- the end that was wanted
    Cause("done", ExitCode.DONE, "the program ended with 0 on every node", "nothing"),
    Cause("saved", ExitCode.SAVED, "stopped, and the program saved: start it again", "nothing"),
    Cause("stopped", ExitCode.STOPPED, "stopped before the program saved",
          "exit with 75 after saving on SIGTERM, within the grace period"),
]  # fmt: skip
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
