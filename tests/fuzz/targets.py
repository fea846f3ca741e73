"""Invariants of what jobgen and the worker read, for any input bytes."""

from collections.abc import Callable

from gpuworker.fleet.report_sources import from_text
from gpuworker.group import protocol as group_protocol
from gpuworker.group.group_state import GroupPlan, GroupState, Task
from gpuworker.judgement.fleet_report import json_text
from gpuworker.judgement.merge import merge
from gpuworker.judgement.sources import Expected, Source
from gpuworker.launch import protocol as launch_protocol
from gpuworker.runtime.json_lines import Codec, encode
from tests.fuzz.check import jobgen

HOSTS = ("buffer-0", "trainer-0", "trainer-1")
PLAN = GroupPlan(
    "rl", 60.0, True, True,
    {"buffer": Task("buffer", HOSTS[:1], False), "trainer": Task("trainer", HOSTS[1:], True, {"buffer": "done"})},
)  # fmt: skip


def launch(data: bytes):
    _decoded(launch_protocol.ORDERS, data)
    if message := _decoded(launch_protocol.STATUS, data):
        assert message.info.name


def group(data: bytes):
    message = _decoded(group_protocol.CODEC, data)
    if message is None:
        return
    sent = message if isinstance(message, GroupState) else message.state
    state = GroupState()
    state.merge(sent, list(HOSTS))
    once = encode(state)
    state.merge(sent, list(HOSTS))
    assert encode(state) == once, "merging twice is not merging once"
    assert len(once) < PLAN.line_limit, "a state that no agent would read"
    for host in HOSTS:
        state.end_reason(host, PLAN)
        state.pending_dependencies(PLAN.task_of(host), PLAN)


def _decoded(codec: Codec, line: bytes) -> object | None:
    """The message; what was read can be sent and read again."""
    message = codec.decode(line)
    if message is not None:
        again = codec.decode(encode(message))
        assert encode(again) == encode(message), "sent and read again, it differs"
    return message


def reports(data: bytes):
    """A source is a report or a problem, never an exception; whatever is taken can be merged and
    written.
    """
    sources = from_text("input", data)
    assert sources and all(bool(source.error) != (source.report is not None) for source in sources)
    fleet = merge([Source("healthy", error="away"), *sources], Expected(count=2))
    assert fleet.verdict != "PASS", "a fleet without evidence passed"
    json_text(fleet).encode()


TARGETS: dict[str, Callable[[bytes], None]] = {
    "jobgen": jobgen, "launch": launch, "group": group, "reports": reports,
}  # fmt: skip
