"""Reports that contradict themselves, or that cannot have been measured, are INCOMPLETE with words."""

from __future__ import annotations

import datetime
import json

import pytest

from gpuworker.fleet.report_sources import from_text
from gpuworker.judgement.fleet_report import Fleet
from gpuworker.judgement.merge import merge
from gpuworker.judgement.report import INCOMPLETE, PASS
from gpuworker.judgement.sources import Expected
from tests.helpers.fleet_reports import REQUESTED, complete_report

NOW = datetime.datetime.now(datetime.UTC)


def fleet_of(data: bytes) -> Fleet:
    return merge(from_text("n1.json", data), Expected(1, requested=REQUESTED))


def fleet_of_report(**changes: object) -> Fleet:
    return fleet_of(json.dumps(complete_report("n1", **changes)).encode())


def test_a_key_that_stands_twice_is_refused() -> None:
    text = json.dumps(complete_report("n1"))
    twice = text.replace('"run_id": "1"', '"run_id": "2", "run_id": "1"', 1)
    assert twice != text and fleet_of(text.encode()).verdict == PASS
    fleet = fleet_of(twice.encode())
    assert fleet.verdict == INCOMPLETE and "run_id stands twice" in fleet.reason


@pytest.mark.parametrize("duration_s", [0.0, -5.0, 1e9, None])
def test_a_test_takes_time(duration_s: float | None) -> None:
    fleet = fleet_of_report(duration_s=duration_s)
    assert fleet.verdict == INCOMPLETE and "took" in fleet.reason


def test_a_test_that_is_reported_has_ended() -> None:
    started = (NOW - datetime.timedelta(seconds=5)).isoformat()
    assert fleet_of_report(started=started, duration_s=70.0).verdict == PASS, "clocks differ"
    fleet = fleet_of_report(started=started, duration_s=7000.0)
    assert fleet.verdict == INCOMPLETE and "future" in fleet.reason


@pytest.mark.parametrize("value", ["x", "0" * 63, "G" * 64, "0" * 64])
def test_a_hash_has_the_form_of_one_and_differs_between_computations(value: str) -> None:
    report = complete_report("n1")
    check = next(check for check in report["checks"] if check["hashes"])
    check["hashes"] = dict.fromkeys(check["hashes"], value)
    fleet = fleet_of(json.dumps(report).encode())
    assert fleet.verdict == INCOMPLETE and "hash" in fleet.reason
