"""Messages between programs: what a peer sends is read, and what a stranger sends is refused."""

from __future__ import annotations

import json

import pytest

from gpuworker.launch.failure_causes import Failure
from gpuworker.launch.protocol import NodeInfo, NodeState, Orders, RankReport, Status
from gpuworker.runtime.json_lines import Codec, encode

REPORT = RankReport(
    3, words="is at a.py:1 in f", groups={"0": 7}, flying=Failure("program-failed", "x", rank=3)
)
PROBLEM = Failure("usage", "why")
CODEC = Codec((Status, Orders))
MESSAGES = [
    Status("run", NodeInfo(node=3, pod="run-3", problem=PROBLEM), progress_age=1.5),
    Status(
        "run", NodeInfo(), NodeState.SAVED, failures=[Failure("killed", rank=3)], reports=[REPORT]
    ),
    Orders(go=True, restarts=1),
    Orders(verdict=Failure("program-failed", "exit code 1", rank=7)),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_read_as_it_was_sent(message):
    line = encode(message)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert CODEC.decode(line) == message


GARBAGE = [
    b"",
    b"\x00\xff\n",
    b"{}\n",
    b"[]\n",
    b'"Orders"\n',
    b"[" * 100_000,
    b"{" * 100_000,
    b'{"type": "Popen", "args": ["sh"]}\n',
    b'{"type": ["Orders"]}\n',
    b'{"type": "Status"}\n',  # without its run
    b'{"type": "Orders", "question": "5"}\n',
    b'{"type": "Orders", "stop": 5}\n',
    b'{"type": "Orders", "attempt": true}\n',
    b'{"type": "Orders", "verdict": {"cause": "nonsense"}}\n',
    b'{"type": "Orders", "verdict": {"cause": "finished"}}\n',
    b'{"type": "Status", "run_id": "r", "info": {}, "state": "dancing"}\n',
    b'{"type": "Status", "run_id": "r", "info": {}, "reports": [{"rank": "three"}]}\n',
    b'{"type": "Status", "run_id": "r", "info": {}, "reports": [{"rank": 3, "groups": {"0": "x"}}]}\n',
    b'{"type": "Status", "run_id": "r", "info": {}, "failures": [[]]}\n',
    b'{"type": "Status", "run_id": "r", "info": {}, "progress_age": 1%s}\n' % (b"0" * 400),
    b'{"type": "Status", "run_id": "r", "info": {"node": "three"}}\n',
]


@pytest.mark.parametrize("line", GARBAGE, ids=range(len(GARBAGE)))
def test_everything_else_is_no_message(line):
    assert CODEC.decode(line) is None


def test_fields_of_another_version_are_dropped_and_missing_ones_have_defaults():
    data = json.loads(encode(Status("run", NodeInfo(node=1))))
    data["info"] = {"node": 1, "interface": "eth7", "colour": "blue"}
    assert CODEC.decode(json.dumps(data).encode()) == Status(
        "run", NodeInfo(node=1, interface="eth7")
    )
