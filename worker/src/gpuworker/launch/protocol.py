"""Messages between the coordinator on node 0 and the participants, one per node (node 0 included).

A participant sends Hello; the coordinator replies with Welcome, Rejected or a Failure. Go starts
the run; heartbeats flow both ways until End, which carries the verdict of the run. A Failure from
a participant is one of its ranks', or of the node itself in the phase preflight.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from gpuworker.launch.failure_causes import Failure
from gpuworker.runtime.json_lines import Codec

VERSION = "ddp-launch/4"  # also the purpose of signed lines
HEARTBEAT_S = 1.0


class NodeState(str, enum.Enum):
    """State of one node, as its participant reports it."""

    JOINED = "joined"  # its node info is known
    RUNNING = "running"  # its ranks were started
    DONE = "done"  # every rank ended with 0
    SAVED = "saved"  # every rank ended with 0 or 75, on request or because one wants another start
    STOPPED = "stopped"  # stopped, and not every rank saved

    @property
    def running(self) -> bool:
        return self in (NodeState.JOINED, NodeState.RUNNING)


@dataclass
class NodeInfo:
    """Properties of a node before the run. `node` is its index, `host` the Kubernetes node.

    `clock` is in seconds since the epoch; `clock_skew` is its difference to node 0's clock when the
    message arrived.
    """

    node: int = -1
    pod: str = ""
    host: str = ""
    ip: str = ""
    interface: str = ""
    nnodes: int = 0
    nproc_per_node: int = 0
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
    problem: Failure | None = None  # why this node cannot take part


@dataclass
class RankReport:
    """One rank, as its launcher sees it after a question.

    `place`: file:line in function, of the program. `waits_in`: the collective it waits in.
    `inside`: a library's call. `state`: running, ended, ending (its main program has ended),
    importing, stopped (by a signal), or silent: it has not answered. `flying`: the exception that
    is being handled. `groups`: process group -> collectives started; `last`: the last one of each,
    by torch's recorder. `threads`: those that Python waits for, with their places.
    """

    rank: int
    state: str = "silent"
    code: int | None = None
    place: str = ""
    waits_in: str = ""
    inside: str = ""
    failure: Failure | None = None
    flying: Failure | None = None
    groups: dict = field(default_factory=dict)
    last: dict = field(default_factory=dict)
    threads: list = field(default_factory=list)
    frames: list = field(default_factory=list)  # of `ddp-launch stacks` only

    @property
    def busy(self) -> bool:
        """Whether it may still report a failure of its own: it runs, and does not wait."""
        return self.code is None and not self.waits_in and not self.failure


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

    It never has the id of the coordinator's run, which without a key is all that a message needs to
    be of it.
    """

    reason: str


@dataclass
class Go:
    """All nodes have joined and match: start the ranks. `addresses`: of all nodes."""

    attempt: int = 0
    restarts: int = 0  # in place, before this start
    addresses: list = field(default_factory=list)


@dataclass
class Heartbeat:
    """Sign of life, every HEARTBEAT_S seconds; from node 0 with the nodes that are missing.

    `progress_age`: seconds since the last progress of any rank of the node that sends it.
    `steps`: rank -> optimizer steps until now.
    """

    missing: list = field(default_factory=list)
    progress_age: float = 0.0
    steps: dict = field(default_factory=dict)


@dataclass
class StateChange:
    """New state of its sender. `progressed`: whether it made a step, or ran for long."""

    state: NodeState
    progressed: bool = True


@dataclass
class StopRequested:
    """The node that sends it got a signal, so the run has to stop."""

    signal: str


@dataclass
class Stop:
    """Stop the program on every node."""

    reason: str


@dataclass
class Question:
    """Ask every rank. `frames`: for its whole stack."""

    number: int
    frames: bool = False


@dataclass
class Answer:
    """Reports of all ranks of the node that sends it; `number` is the question's."""

    number: int
    ranks: list

    def reports(self) -> list[RankReport]:
        return [found for each in self.ranks if (found := read_report(each))]


@dataclass
class StacksRequested:
    """Somebody wants the stacks of all ranks: a command on this node, or nobody in particular."""


@dataclass
class Stacks:
    """The stacks of all ranks as text, for the nodes to show. `why`: without a request."""

    text: str
    why: str = ""


@dataclass
class Restart:
    """End the program on every node, then report JOINED: it starts again in the same pods."""

    number: int  # from 1
    reason: str


@dataclass
class End:
    """Verdict of the run, the same on every node."""

    verdict: Failure


CODEC = Codec(
    (
        Hello, Welcome, Rejected, Go, Heartbeat, StateChange, Failure, StopRequested, Stop,
        Question, Answer, StacksRequested, Stacks, Restart, End,
    )
)  # fmt: skip


def read_report(data: object) -> RankReport | None:
    """A rank's report out of another node's message; None if it is none."""
    report = Codec.build(RankReport, data) if isinstance(data, dict) else None
    if report:
        report.groups = {key: value for key, value in report.groups.items() if type(value) is int}
        report.last = {key: value for key, value in report.last.items() if type(value) is dict}
        report.threads = [each for each in report.threads if type(each) is str]
    return report
