"""The one table from what is seen to what it means: the launcher ends by it, and the documentation prints it.

python3 -m gpuworker.launch.failure_causes      prints the table as Markdown
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """One way for a run to end. `pattern` finds it in what torch or the program printed."""

    key: str
    code: int
    sign: str
    remedy: str
    pattern: str = ""
    echo: bool = False  # says only that another rank has failed: never the root cause


DONE, USAGE, SAVED, STOPPED = 0, 2, 75, 143

CAUSES = [
    Cause("usage", USAGE, "the plan is wrong: a flag or a variable", "set what the line names"),
    # -- finding node 0
    Cause("no-name", 64, "the master's name does not resolve",
          "is pod 0 there (kubectl get pods), and may this pod ask DNS (NetworkPolicy)?",
          r"cannot be retrieved \(gai error|Name or service not known|Temporary failure in name resolution"),
    Cause("wrong-name", 64, "the master's name resolves to an address that node 0 does not have",
          "use pod 0's own DNS name, not that of a Service with its own address or with several pods"),
    Cause("refused", 65, "node 0's port refuses: nothing listens",
          "look at pod 0: pending, image not pulled, still starting, or ended"),
    Cause("dropped", 65, "nothing answers at node 0's address: packets are dropped",
          "let the run's pods reach each other on all ports (NetworkPolicy, firewall), or look for a dead node 0",
          r"No route to host|connectFullMesh|timed out connecting"),
    Cause("closes", 65, "node 0's port accepts and closes", "a proxy or service mesh is in front: switch it off"),
    Cause("silent", 65, "node 0's port accepts and stays silent", "another program has the port: choose another port"),
    Cause("stranger", 65, "what answers on node 0's port is no ddp-launch", "choose another port"),
    Cause("other-run", 65, "the launcher on node 0's port belongs to another run",
          "two runs share an address (hostNetwork): give each its own port"),
    Cause("port-taken", 65, "a port of this run is taken on node 0", "another program has it: choose another port",
          r"EADDRINUSE|[Aa]ddress already in use"),
    # -- all nodes, and all alike
    Cause("missing", 66, "nodes did not come in time", "kubectl describe pod: pending, image not pulled, ended early"),
    Cause("lost", 66, "a node was lost while the run was on",
          "kubectl describe pod and node: evicted, out of memory, node down, or network cut"),
    Cause("differ", 67, "nodes differ", "give all nodes the same image and values"),
    Cause("twice", 67, "two pods claim the same node index", "delete the pod that is left over"),
    Cause("unfit", 67, "a node lacks what the plan asks for", "repair or exclude the node, or lower what is asked"),
    Cause("interface", 68, "no such network interface, or none that leads to node 0",
          "leave the interface empty (it is taken from the route), or name one that the line lists",
          r"Unable to find address for|no socket interface found|Bootstrap : no socket interface"),
    # -- torchrun's own rendezvous
    Cause("not-formed", 69, "the nodes are there, and torchrun formed no world of them",
          "set DEBUG_DISTRIBUTED=1 and look at torchrun's lines above",
          r"RendezvousTimeoutError|clients joined|RendezvousConnectionError|connection to the C10d store has failed"),
    Cause("stale-id", 69, "the rendezvous id has been used before", "let the launcher choose it, or change RUN_ID",
          r"RendezvousClosedError"),
    Cause("etcd-absent", 69, "etcd does not answer", "is etcd running, and may this pod reach it?"),
    Cause("etcd-no-v2", 69, "this etcd has no v2 API", "use etcd 3.4 or 3.5 with --enable-v2"),
    # -- the program
    Cause("collective", 70, "a collective timed out", "look at the ranks that the line names",
          r"Watchdog caught collective operation timeout|Timed out (after )?waiting \d+ ?ms|wait timeout after \d+"
          r"|Collective .*timed out|monitoredBarrier"),
    Cause("disk-full", 1, "a disk is full", "make room, or give the volume more", r"No space left on device|Errno 28"),
    Cause("shared-memory", 1, "/dev/shm is too small", "raise sharedMemory.sizeLimit", r"[Bb]us error|SIGBUS"),
    Cause("gpu-memory", 1, "a GPU is out of memory", "use a smaller batch or model", r"CUDA out of memory"),
    Cause("out-of-memory", 1, "a rank was killed: the container is out of memory", "raise resources.limits.memory"),
    Cause("killed", 1, "a rank was ended by a signal", "look at the rank's last lines and at its node"),
    Cause("early-end", 1, "a rank ended well while others still worked", "all ranks must run the same number of steps"),
    Cause("peer-gone", 1, "a rank lost its peer", "look at the rank that failed first",
          r"Connection closed by peer|Connection reset by peer|Broken pipe|[Cc]onnection refused|ncclRemoteError"
          r"|remote process exited|Socket closed", echo=True),
    Cause("failed", 1, "the program failed", "read the first failing rank's lines above"),
    Cause("launcher", 1, "ddp-launch itself failed", "report it, with the traceback above"),
    # -- stopped from outside
    Cause("saved", SAVED, "stopped, and the program saved: start it again", "nothing"),
    Cause("stopped", STOPPED, "stopped before the program saved",
          "exit with 75 after saving on SIGTERM, within the grace period"),
]  # fmt: skip
BY_KEY = {cause.key: cause for cause in CAUSES}


class Verdict(Exception):
    """How the run ends: a row of the table, the fact that led to it, and the phase it was in."""

    def __init__(self, key: str, why: str, phase: str = ""):
        super().__init__(why)
        self.cause, self.why, self.phase = BY_KEY[key], why, phase

    @property
    def code(self) -> int:
        return self.cause.code

    def data(self) -> dict[str, str]:
        return {"key": self.cause.key, "why": self.why, "phase": self.phase}


def explain(text: str) -> Cause | None:
    """The first row whose pattern the text fits; a root cause before an echo of another rank's."""
    found = [cause for cause in CAUSES if cause.pattern and re.search(cause.pattern, text)]
    return min(found, key=lambda cause: cause.echo, default=None)


def markdown() -> str:
    rows = [f"| {cause.code} | `{cause.key}` | {cause.sign} | {cause.remedy} |" for cause in CAUSES]
    return "\n".join(["| exit code | cause | what it means | what to do |", "|---|---|---|---|", *rows]) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
