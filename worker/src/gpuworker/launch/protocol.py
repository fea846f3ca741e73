"""What the nodes of a run tell each other: each its Status to node 0, node 0 its Orders to all.

Both say all that their sender knows, and are sent when it changes. They are also the sign of
life of its sender, every HEARTBEAT_S seconds.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

from gpuworker.launch.failure_causes import Failure
from gpuworker.runtime.json_lines import LINE_LIMIT, Codec

PURPOSE = "ddp-launch"  # of signed lines
HEARTBEAT_S = 1.0
STACKS_CHARS = LINE_LIMIT // 8  # of all ranks, or of those of a node, in one message
NAMED = 8


def first(words: list[str]) -> str:
    """The first words of a list that may be as long as the run is large."""
    more = f" and {len(words) - NAMED} more" if len(words) > NAMED else ""
    return ", ".join(words[:NAMED]) + more


class NodeState(str, enum.Enum):
    """State of one node, as its participant reports it."""

    JOINED = "joined"  # its node info is known
    RUNNING = "running"  # its ranks were started
    DONE = "done"  # every rank ended with 0
    SAVED = "saved"  # every rank ended with 0 or 75, on request or because one wants another start
    STOPPED = "stopped"  # stopped, and not every rank saved


@dataclass
class NodeInfo:
    """A node before the run. `node` is its index, `host` the Kubernetes node.

    `facts`: what must be the same on all nodes. `problem`: why it cannot take part.
    """

    node: int = -1
    pod: str = ""
    host: str = ""
    interface: str = ""
    address: str = ""  # of the interface
    facts: dict[str, int | str] = field(default_factory=dict)
    problem: Failure | None = None

    @property
    def name(self) -> str:
        """As in every message: `node 1 (pod run-1 on n1)`."""
        return f"node {self.node} (pod {self.pod}{f' on {self.host}' if self.host else ''})"


@dataclass
class RankReport:
    """One rank, as its launcher sees it after a question.

    `words`: what it does, and where. `waits`: it is in a collective, or that has timed out.
    `flying`: the exception that it handles. `groups`: process group -> collectives started; `last`:
    the last one of each, by torch's recorder. `steps`: of the optimizer. `stack`: for
    `ddp-launch stacks` only.
    """

    rank: int
    node: str = ""  # its name
    words: str = ""
    code: int | None = None
    failed: bool = False
    waits: bool = False
    importing: bool = False
    flying: Failure | None = None
    groups: dict[str, int] = field(default_factory=dict)
    last: dict[str, dict] = field(default_factory=dict)
    steps: int = 0
    stack: str = ""

    @property
    def name(self) -> str:
        return f"rank {self.rank} of {self.node}"

    @property
    def busy(self) -> bool:
        """Whether it may still report a failure of its own: it runs, and does not wait."""
        return self.code is None and not self.waits and not self.failed


@dataclass
class Status:
    """What one node knows of itself.

    `restarts`: in place, before the start that it speaks of. `progressed`: a rank has made a step,
    or has run for long. `progress_age`: seconds since the last progress of any rank. `failures`: of
    its ranks, or of the node without one. `answered`: the last question; its `reports` are sent
    once. `stop`: the signal that it got. `join_s`: until it waits no more for the start.
    """

    run_id: str
    info: NodeInfo
    state: NodeState = NodeState.JOINED
    restarts: int = 0
    progressed: bool = False
    progress_age: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    answered: int = 0
    reports: list[RankReport] = field(default_factory=list)
    stop: str = ""
    wants_stacks: bool = False
    join_s: float = math.inf


@dataclass
class Orders:
    """What node 0 wants of all nodes.

    `go`: start the ranks, without the nodes `left_out`, and with rank 0 at `master` if that is not
    node 0. `restarts`: a higher number ends the program, to start it again in place,
    because of `restart_reason`. `question`: a higher number asks every rank, for whole stacks with
    `frames`. `stop`: why the program has to stop. `stacks`: of all ranks, for nodes that want them.
    `verdict`: the end. `rejected`: why the receiver is not part of the run.
    """

    go: bool = False
    left_out: list[int] = field(default_factory=list)
    master: str = ""
    attempt: int = 0
    restarts: int = 0
    restart_reason: str = ""
    question: int = 0
    frames: bool = False
    stop: str = ""
    stacks: str = ""
    verdict: Failure | None = None
    rejected: str = ""


STATUS, ORDERS = Codec((Status,)), Codec((Orders,))
