"""Failure causes: what can end a run, with exit code, meaning and remedy, and who may say so.

docs/ddp-run.md prints the table (`python3 -m gpuworker.launch.failure_causes`).
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpuworker.runtime.contract import ExitCode


@dataclass(frozen=True)
class Cause:
    """One way for a run to end.

    Causes of the launch and of a node (64 and above, without 70) are found by the launcher itself.
    What a rank's exception can be the cause of is in `of_exception`, and by nothing else.
    `secondary`: it only reports the failure of another rank, so it is never the root cause.
    """

    key: str
    code: ExitCode
    meaning: str
    remedy: str
    secondary: bool = False

    @property
    def restartable(self) -> bool:
        """Whether the program may start again in the same pods: it failed itself."""
        failed = self.code in (ExitCode.FAILED, ExitCode.HANG)
        return failed and self.key not in ("launcher-failed", "restart-loop")


CAUSES = [
    Cause("usage", ExitCode.USAGE, "a flag or a variable is wrong", "set what the line names"),
    # -- reaching node 0
    Cause("name-not-resolved", ExitCode.NAME_RESOLUTION, "the name of node 0 does not resolve",
          "check that pod 0 exists (kubectl get pods) and that this pod may use DNS (NetworkPolicy)"),
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
    Cause("interface-not-found", ExitCode.INTERFACE,
          "the network interface does not exist, or none leads to node 0",
          "leave the interface empty (it is taken from the route), or name one that the line lists"),
    Cause("slow-import", ExitCode.RENDEZVOUS,
          "ranks waited for one that was still importing its modules",
          "make the image's file system faster, or raise --startup-collective-timeout"),
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
    Cause("early-exit", ExitCode.FAILED, "a rank ended with 0 while other ranks still worked",
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
    phase: str = "run"
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


OUT_OF_MEMORY = ("torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError")
NO_MEMORY = re.compile(r"(CUDA|HIP) out of memory|Cuda failure (2 )?'out of memory'")
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
TIMED_OUT = re.compile(r"[Tt]imed? ?out|wait timeout after \d+|monitoredBarrier|watchdog got stuck")
# Gloo's and NCCL's own words for the end of a peer.
LOST = re.compile(
    r"Connection (was )?(likely )?(closed|reset) by (remote )?peer|Broken pipe|[Cc]onnection refused"
    r"|ncclRemoteError|remote process (exited|has)|[Ss]ocket closed|[Ff]ailed to recv, got 0 bytes"
    r"|Read error|Write error|NCCL communicator was aborted|ncclSystemError|unhandled system error"
    r"|Failed to connect to|failed to connect to|timed out connecting|connectFullMesh"
)
BROKEN_GPU = re.compile(
    r"uncorrectable ECC error|hardware stack error|unspecified launch failure|GPU is lost"
    r"|fallen off the bus|GPU requires reset|uncorrectable NVLink error"
)
# RuntimeErrors that torch's C++ raises name the file or the component at their beginning.
FROM_GLOO = re.compile(r"^\[?\S*(gloo/|ProcessGroup)|^(Gloo|NCCL error|Application timeout|Timed out waiting)")
FROM_CUDA = re.compile(r"^(CUDA error|HIP error|CUDA driver error)")
# As ProcessGroupNCCL's watchdog logs it before it ends the process.
WATCHDOG = b"Watchdog caught collective operation timeout"
WRITING = re.compile(
    r"unexpected pos \d+ vs|PytorchStreamWriter|inline_container|os error 28|requested and \d+ written"
    r"|No space left|enforce fail at .*write"
)
WORKER = re.compile(r"^DataLoader worker .* (killed by signal: (\w+)|exited unexpectedly)")
SHARED_MEMORY = re.compile(r"DataLoader worker .*[Bb]us error|unable to (mmap|allocate shared memory)"
                           r"|unable to write to file </torch_")  # fmt: skip


def of_exception(errors: list[dict], addresses: Iterable[str], full: list[str], oom: bool) -> str:
    """Cause of an exception, by its class, its errno, and facts of this node.

    `errors`: rank_hook.describe. `addresses`: what the run's own connections lead to. `full`:
    volumes without free space. `oom`: the kernel killed a process of this container for memory.
    The text counts only of classes that torch raises for its communication and its GPU.
    """
    causes = [_of_one(error, addresses, full, oom) for error in errors]
    # What was raised `from` another one has its cause. What was raised in a handler or in `finally`
    # has it only if it says nothing itself: the victim of a lost peer, not a new error.
    found = causes[0]
    for cause, error in zip(causes[1:], errors[1:], strict=True):
        if error["how"] in ("from", "first of") or found == "program-failed":
            found = cause if cause != "program-failed" else found
        elif BY_KEY[found].secondary and cause != found:
            found = cause
    return found


def _of_one(error: dict, addresses: Iterable[str], full: list[str], oom: bool) -> str:
    kinds, text = error["kinds"], f"{error['first']}\n{error['last']}"
    kind = kinds[0]
    if kind in OUT_OF_MEMORY or (kind == "builtins.RuntimeError" and NO_MEMORY.match(text)):
        return "gpu-out-of-memory"
    system, runtime = "builtins.OSError" in kinds, kind == "builtins.RuntimeError"
    from_library = kind.startswith(("torch.", "safetensors")) or runtime or system
    if from_library and (error["errno"] in DISK_FULL or WRITING.search(text)):
        in_memory = "/dev/shm" in full and (full == ["/dev/shm"] or "/dev/shm" in error["file"])
        if in_memory:
            return "shared-memory-full"
        if full or error["errno"] == errno.EDQUOT or kind.startswith("safetensors"):
            return "disk-full"  # safetensors takes back what it has written
    if runtime and SHARED_MEMORY.search(text):
        return "shared-memory-full"
    if runtime and (killed := WORKER.search(text)) and oom and killed[2] in ("Killed", None):
        return "out-of-memory"
    if BROKEN_GPU.search(text) and (kind == "torch.AcceleratorError" or FROM_CUDA.search(text)):
        return "gpu-failed"
    network = ("torch.distributed.DistNetworkError", "torch.distributed.DistStoreError")
    communicates = kind in ("torch.distributed.DistBackendError", *network)
    if communicates or (runtime and FROM_GLOO.search(text)):
        joins = any(name == "init_process_group" for _, _, name in error["frames"])
        if kind in network and not joins and not any(address in text for address in addresses):
            return "program-failed"  # a store that the program opened itself
        if NO_MEMORY.search(text):
            return "gpu-out-of-memory"
        if "EADDRINUSE" in text:
            return "port-in-use"
        if TIMED_OUT.search(text) or "failed to pass monitoredBarrier" in text:
            return "collective-timeout"
        if LOST.search(text):
            return "peer-lost"
    return "program-failed"


def markdown() -> str:
    rows = [f"| {int(each.code)} | `{each.key}` | {each.meaning} | {each.remedy} |"
            for each in CAUSES if each.key != "done"]  # fmt: skip
    return "\n".join(["| exit code | cause | meaning | remedy |", "|---|---|---|---|", *rows]) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
