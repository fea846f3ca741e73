"""Messages between programs: what a peer sends is read, and what a stranger sends is refused."""

from __future__ import annotations

import dataclasses
import json

import pytest

from gpuworker.launch.failure_causes import Failure
from gpuworker.launch.protocol import CODEC, End, Go, Hello, NodeInfo, NodeState, RankReport, StateChange, read_report
from gpuworker.runtime.json_lines import encode

MESSAGES = [
    Hello("v", "run", NodeInfo(node=3, pod="run-3", clock=1.5, problem=Failure("usage", "why", "config"))),
    Go(2, 1, ["10.0.0.7"]),
    StateChange(NodeState.SAVED),
    Failure("program-failed", "exit code 1"),
    Failure("program-failed", "exit code 1", rank=7),
    End(Failure("done")),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_read_as_it_was_sent(message):
    line = encode(message)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert CODEC.decode(line) == message


def test_the_report_of_a_rank_arrives_inside_an_answer():
    report = RankReport(
        3, "running", place="a.py:1 in f", groups={"0": 7}, flying=Failure("program-failed", "x", rank=3)
    )
    assert read_report(dataclasses.asdict(report)) == report
    assert read_report({"rank": "three"}) is None and read_report([]) is None
    odd = dataclasses.asdict(report) | {"groups": {"0": "seven"}, "last": {"0": 1}, "threads": [None]}
    assert (read_report(odd).groups, read_report(odd).last, read_report(odd).threads) == ({}, {}, [])


GARBAGE = [
    b"",
    b"\x00\xff\n",
    b"{}\n",
    b"[]\n",
    b'"Go"\n',
    b"[" * 100_000,
    b"{" * 100_000,
    b'{"type": "Popen", "args": ["sh"]}\n',
    b'{"type": ["Go"]}\n',
    b'{"type": "Question"}\n',  # without its number
    b'{"type": "Go", "addresses": 5}\n',
    b'{"type": "Go", "attempt": true}\n',
    b'{"type": "End", "verdict": {"cause": "nonsense"}}\n',
    b'{"type": "StateChange", "state": "dancing"}\n',
    b'{"type": "Heartbeat", "progress_age": 1%s}\n' % (b"0" * 400),  # more than a float can hold
    b'{"type": "Hello", "version": "v", "run_id": "r", "info": {"node": "three"}}\n',
]


@pytest.mark.parametrize("line", GARBAGE, ids=range(len(GARBAGE)))
def test_everything_else_is_no_message(line):
    assert CODEC.decode(line) is None


def test_fields_of_another_version_are_dropped_and_missing_ones_have_defaults():
    data = json.loads(encode(Hello("v", "run", NodeInfo(node=1))))
    data["info"] = {"node": 1, "launcher": "other", "colour": "blue"}
    assert CODEC.decode(json.dumps(data).encode()) == Hello("v", "run", NodeInfo(node=1, launcher="other"))


def test_every_message_class_is_in_the_codec():
    import gpuworker.launch.protocol as protocol

    classes = {name for name, kind in vars(protocol).items() if dataclasses.is_dataclass(kind)}
    assert classes - {"NodeInfo", "RankReport"} == set(CODEC.classes)
