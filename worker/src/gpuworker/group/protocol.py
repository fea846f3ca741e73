"""Messages of a group: between its agents, and between an agent and the entry script of the same
pod.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from gpuworker.group.group_state import GroupState
from gpuworker.runtime.json_lines import Codec


@dataclass
class Request:
    """One line to another agent, which sends one Reply. `run` and `attempt` must be those of the
    receiver.

    `joined`: the sender's task container runs; the reply comes when the group is released or the
    wait is over. `missing`: the sender's join timeout has passed; the text describes the missing
    ranks.
    """

    run: str
    attempt: str
    rank: str
    state: GroupState = field(default_factory=GroupState)
    joined: bool = False
    missing: str = ""

    def __post_init__(self) -> None:
        self.missing = _printable(self.missing)


@dataclass
class Reply:
    """State of the receiver, whether its own task container runs, and the missing ranks after a
    join timeout.
    """

    state: GroupState
    joined: bool = False
    missing: str = ""

    def __post_init__(self) -> None:
        self.missing = _printable(self.missing)


def _printable(text: str) -> str:
    """Another agent's text as this one may log it."""
    return "".join(char if " " <= char <= "~" else "?" for char in text)


CODEC = Codec((Request, Reply, GroupState))
PURPOSE = "group-agent/1"  # of signed lines between agents


class EntryEvent(str, enum.Enum):
    """First word of a line from the entry script, in the pipe `events`."""

    JOINED = "joined"  # the container runs
    STARTED = "started"  # `setup` has succeeded
    RESULT = "result"  # the task has ended for good; the second word is its exit code


class Pipe(str, enum.Enum):
    """Named pipes in the folder that agent and entry script share."""

    EVENTS = "events"  # from the script: an EntryEvent per line
    START = "start"  # to the script: "run", "done" (the group has ended), or "fail CODE REASON"
    AFTER_SETUP = "after_setup"  # to the script: GroupState.after_setup
    END = "end"  # to the script: "done", or "failed RANK CODE"
    ACK = "ack"  # to the script: the other agents have the result
