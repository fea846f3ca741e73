"""Messages between the coordinator on node 0 and the participants, one per node (node 0 included).

A participant sends Hello; the coordinator replies with Welcome, Rejected or End. Go starts the run; heartbeats flow
both ways until End, which carries the verdict of the run.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from gpuworker.runtime.json_lines import Codec

VERSION = "ddp-launch/3"  # also the purpose of signed lines
HEARTBEAT_S = 1.0


class NodeState(str, enum.Enum):
    """State of one node, as its participant reports it."""

    JOINED = "joined"  # its node info is known
    READY = "ready"  # torchrun has imported torch
    FORMED = "formed"  # torchrun's rendezvous is complete
    DONE = "done"  # every rank ended with 0
    SAVED = "saved"  # stopped, and every rank saved
    STOPPED = "stopped"  # stopped, and not every rank saved

    @property
    def running(self) -> bool:
        return self in (NodeState.JOINED, NodeState.READY, NodeState.FORMED)


@dataclass
class NodeInfo:
    """Properties of a node before the run. `node` is its index, `host` the Kubernetes node.

    `clock` is in seconds since the epoch; `clock_skew` is its difference to node 0's clock when the message arrived.
    """

    node: int = -1
    pod: str = ""
    host: str = ""
    ip: str = ""
    interface: str = ""
    nnodes: int = 0
    nproc_per_node: int = 0
    backend: str = ""
    program: str = ""  # digest of the command line
    image: str = ""
    launcher: str = ""  # digest of the launcher's sources
    python: str = ""
    torch: str = ""
    cuda: str = ""
    nccl: str = ""
    gpus: int = 0  # -1: of a vendor whose GPUs cannot be counted
    gpu_model: str = ""
    gpu_problem: str = ""  # why the driver does not answer
    shm_bytes: int = 0
    disk_bytes: int = 0
    disk_path: str = ""
    clock: float = 0.0
    clock_skew: float = 0.0
    problem: End | None = None  # why this node cannot take part


@dataclass
class Hello:
    """First message of a participant."""

    version: str
    run_id: str
    info: NodeInfo


@dataclass
class Welcome:
    """The node has joined; `missing` are the indices of nodes that have not."""

    missing: list


@dataclass
class Rejected:
    """The coordinator belongs to another run, or this run has started without the node.

    It never has the id of the coordinator's run, which without a key is all that a message needs to be of it.
    """

    reason: str


@dataclass
class Go:
    """All nodes have joined and match. `rendezvous_id` is new for every attempt."""

    rendezvous_id: str
    attempt: int = 0


@dataclass
class Heartbeat:
    """Sign of life, sent every HEARTBEAT_S seconds; from the coordinator with the nodes that are missing.

    `progress_age`: seconds since the last progress of any rank of the node that sends it.
    """

    missing: list = field(default_factory=list)
    progress_age: float = 0.0


@dataclass
class StateChange:
    """New state of the node that sends it. `progressed`: whether its program made a step, or ran for long."""

    state: NodeState
    progressed: bool = True


@dataclass
class RankFailure:
    """First failure on a node. `rank` is None if torchrun itself failed. `cause` is a key of failure_causes.

    `stopped`: the rank was ended by a signal that asks for a stop, which may have gone to all processes of the pod.
    """

    cause: str
    rank: int | None
    detail: str
    phase: str = "run"
    stopped: bool = False


@dataclass
class StopRequested:
    """The node that sends it got a signal, so the run has to stop."""

    signal: str


@dataclass
class Stop:
    """Stop the program on every node."""

    reason: str


@dataclass
class HangSuspected:
    """NCCL has printed that a collective timed out, and will end the ranks soon."""


@dataclass
class StackRequest:
    """Report where every local rank is. `reason`: if the run goes on, what to log."""

    reason: str = ""


@dataclass
class Stacks:
    """Rank (as text) -> where in the program it is; rank -> process group -> collectives that it has started."""

    ranks: dict
    sequences: dict = field(default_factory=dict)


@dataclass
class Restart:
    """End the program on every node, then report READY: it starts again in the same pods. `number` counts from 1."""

    number: int
    reason: str


@dataclass
class End:
    """Verdict of the run, the same on every node. `cause` is a key of failure_causes, or "done"."""

    cause: str
    reason: str = ""
    phase: str = ""


CODEC = Codec(
    (
        Hello, Welcome, Rejected, Go, Heartbeat, StateChange, RankFailure, StopRequested, Stop, HangSuspected,
        StackRequest, Stacks, Restart, End,
    )
)  # fmt: skip
