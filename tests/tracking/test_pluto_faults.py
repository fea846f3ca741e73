"""Pluto servers that are down, silent, slow or reject requests; with the real client and one process per rank."""

from __future__ import annotations

import signal
import socket

import pytest

from tests.helpers.processes import until
from tests.tracking.conftest import Ranks, pluto_at
from tests.tracking.pluto_stand_in import Server, series, terminal


@pytest.mark.parametrize("fault", ["absent", "hang", "401", "403", "500"])
def test_a_failing_server_does_not_delay_the_training_and_no_record_is_lost(
    ranks: Ranks, pluto: Server, fault: str
) -> None:
    pluto.fault = "" if fault == "absent" else fault
    with socket.socket() as unused:  # bound, but not listening
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1] if fault == "absent" else pluto.server_port
        process = ranks.start("--steps", 40, "--seconds", 0.05, "--tracker-timeout", 3, **pluto_at(port))
        output, facts = ranks.end(process)
    assert facts["median"] < 0.01 * 0.05, "1 % of a step"
    assert facts["most"] < 3 and facts["finish"] < 10
    assert "state=unsent" in output and f"kept={ranks.out}" in output
    kept = ranks.unsent("pluto")
    assert [record["step"] for record in kept[:-1]] == list(range(40)) and kept[-1] == {"end": "finished"}
    if fault != "hang":
        return
    pluto.fault = ""
    (file,) = ranks.out.glob("unsent-*")
    ranks.resend(file, **pluto_at(pluto.server_port))
    assert series(pluto.runs[1], "loss") == list(range(40))
    assert terminal(pluto.runs[1]) == ["COMPLETED"]


@pytest.mark.parametrize("fault", ["401", "403"])
def test_a_key_that_the_server_rejects_is_named_while_the_training_runs(
    ranks: Ranks, pluto: Server, fault: str
) -> None:
    pluto.fault = fault
    process = ranks.start("--steps", 100000, "--seconds", 0.05, "--tracker-timeout", 3, **pluto_at(pluto.server_port))
    until(lambda: any(fault in state.read_text() for state in ranks.tmp.glob("pluto-*/state.json")), "the reason")
    process.send_signal(signal.SIGTERM)
    output, _ = ranks.end(process, 75)
    assert "state=rejected" in output


def test_a_server_that_recovers_receives_all_records(ranks: Ranks, pluto: Server) -> None:
    """It is down at the start, and during the run for longer than the client's uploader retries."""
    pluto.fault = "drop"
    process = ranks.start("--steps", 100000, "--seconds", 0.05, **pluto_at(pluto.server_port))
    until(lambda: pluto.requests.get("/api/runs/create", 0) >= 2, "the client tries")
    pluto.fault = ""
    until(lambda: pluto.runs and pluto.runs[1]["metrics"], "the run has metrics")
    pluto.fault = "503"
    before = pluto.requests["/ingest/metrics"]
    until(lambda: pluto.requests["/ingest/metrics"] > before + 9, "the uploader gives up on a batch", 90)
    pluto.fault = ""
    count = len(pluto.runs[1]["metrics"])
    until(lambda: len(pluto.runs[1]["metrics"]) > count, "the run has new metrics")
    process.send_signal(signal.SIGTERM)
    output, facts = ranks.end(process, 75)
    assert "state=sent" in output
    assert set(series(pluto.runs[1], "loss")) == set(range(facts["last"] + 1))


def test_a_slow_server_receives_all_records(ranks: Ranks, pluto: Server) -> None:
    pluto.fault = "slow"
    _, facts = ranks.end(ranks.start("--steps", 20, "--seconds", 0.05, **pluto_at(pluto.server_port)))
    assert facts["median"] < 0.01 * 0.05
    assert series(pluto.runs[1], "loss") == list(range(20))


def test_cancelling_in_pluto_does_not_end_the_training(ranks: Ranks, pluto: Server) -> None:
    """The client then ends its process, which is not the training's."""
    pluto.fault = "cancel"
    process = ranks.start("--steps", 100000, **pluto_at(pluto.server_port))
    until(lambda: pluto.requests.get("/api/runs/trigger"), "the client receives the cancellation")
    until(lambda: not [c for c in ranks.senders().values() if "trackers.sender" in c], "its process has ended")
    process.send_signal(signal.SIGTERM)
    output, facts = ranks.end(process, 75)
    assert "state=failed" in output and "its process exited with 2" in output
    steps = [record["step"] for record in ranks.unsent("pluto") if "step" in record]
    assert set(steps) | set(series(pluto.runs[1], "loss")) == set(range(facts["last"] + 1)), "sent or kept"


def test_a_required_tracker_that_cannot_start_ends_the_training(ranks: Ranks, pluto: Server) -> None:
    pluto.fault = "403"
    process = ranks.start("--tracker-required", "--tracker-timeout", 5, **pluto_at(pluto.server_port))
    output, _ = ranks.end(process, 1)
    assert "TrackerError: pluto is required and could not be reached" in output and "status 403" in output
    assert "trains" not in output


def test_a_required_tracker_that_fails_at_the_end_fails_the_training(ranks: Ranks, pluto: Server) -> None:
    arguments = ("--steps", 100, "--seconds", 0.02, "--tracker-required", "--tracker-timeout", 8)
    process = ranks.start(*arguments, **pluto_at(pluto.server_port))
    until(lambda: pluto.runs and pluto.runs[1]["metrics"], "the run has metrics")
    pluto.fault = "500"
    output, _ = ranks.end(process, 1)
    assert "TrackerError: pluto: not everything was sent" in output
    assert len(ranks.unsent("pluto")) > 1
