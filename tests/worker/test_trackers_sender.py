"""Lines of a sender whose tracker fails for a long time."""

from __future__ import annotations

import json

import pytest

from gpuworker.train.trackers import sender, spool


@pytest.fixture
def lines(tmp_path, monkeypatch) -> tuple[sender.Sender, list[str]]:
    (tmp_path / spool.CONFIG).write_text(json.dumps({"tracker": "mlflow", "rank": 0}))
    made, found = sender.Sender(tmp_path), []
    monkeypatch.setattr(made, "log", lambda **facts: found.append(facts["why"]))
    yield made, found
    made.console.close()


def test_reasons_that_take_turns_have_one_line_each(lines):
    made, found = lines
    for number in range(20):
        made.log_failure(ConnectionError(f"no answer after {number}.5 s"))
        made.log_failure(ConnectionError(f"object at 0x7f{number:02x} is lost"))
    assert found == ["no answer after 0.5 s", "object at 0x7f00 is lost"]
    assert made.state["why"] == "object at 0x7f13 is lost"


def test_a_reason_is_repeated_after_an_interval(lines, monkeypatch):
    made, found = lines
    made.log_failure(ConnectionError("away"))
    now = sender.time.monotonic()
    monkeypatch.setattr(sender.time, "monotonic", lambda: now + sender.REPEAT_S)
    made.log_failure(ConnectionError("away"))
    assert found == ["away", "away"]
