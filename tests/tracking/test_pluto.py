"""Pluto's real client against a stand-in for its server, over HTTP, with one process per rank."""

from __future__ import annotations

import os
import signal

import pytest

from tests.helpers.processes import until
from tests.tracking.conftest import REPO, Ranks, pluto_at
from tests.tracking.pluto_stand_in import KEY, Server, series, terminal

STEPS = 60


def test_all_nodes_report_to_one_run(ranks: Ranks, pluto: Server) -> None:
    variables = pluto_at(pluto.server_port)
    started = [
        ranks.start("--steps", STEPS, "--artifact", REPO / "LICENSE", rank=rank, world=3, **variables)
        for rank in range(3)
    ]
    seen: dict[int, str] = {}
    until(lambda: seen.update(ranks.senders()) or all(each.poll() == 0 for each in started), "all are done", 120)
    assert sum("trackers.sender" in command for command in seen.values()) == 3
    assert any("trackers.pluto_run" in command for command in seen.values()), "an uploader"
    assert not [command for command in seen.values() if KEY in command], "the key is in a command line"
    output = [ranks.end(process)[0] for process in started]
    assert list(pluto.runs) == [1], "one run"
    run = pluto.runs[1]
    assert (run["externalId"], run["project"], run["created"], run["joined"]) == ("run-7f3a", "tests", 1, 2)
    assert sum("resumed=true" in text for text in output) == 2
    assert all("run=1 " in text and "state=sent" in text for text in output)
    every = list(range(STEPS))
    assert series(run, "loss") == every and series(run, "node-0/loss") == every
    for rank in (1, 2):
        assert series(run, f"node-{rank}/loss") == every
        values = {point["data"].get(f"node-{rank}/tokens_per_second") for point in run["metrics"]} - {None}
        assert values == {100.0 + rank}
        assert series(run, f"system/node-{rank}/load_1min")
    assert "diverged" not in run["names"], "NaN is not JSON"
    assert run["config"] == {"lr": 0.1, "model.layers": 2, "first": 0}
    assert [size for name, size in run["files"].items() if name.startswith("LICENSE")] == [
        (REPO / "LICENSE").stat().st_size
    ]
    assert run["statuses"][-1] == "COMPLETED" and len(terminal(run)) == 1
    assert not list(ranks.tmp.iterdir()), "files are left on the node's disk"


@pytest.mark.parametrize("name", ["PLUTO_API_TOKEN", "MLOP_API_TOKEN"])
def test_the_key_is_also_read_under_its_old_names(ranks: Ranks, pluto: Server, name: str) -> None:
    variables = pluto_at(pluto.server_port, **{"PLUTO_API_KEY": "", name: KEY})
    ranks.end(ranks.start("--steps", 3, **variables))
    assert terminal(pluto.runs[1]) == ["COMPLETED"]


def test_a_preempted_run_is_continued_by_the_next_attempt(ranks: Ranks, pluto: Server) -> None:
    variables = pluto_at(pluto.server_port)
    started = [ranks.start("--steps", 100000, rank=rank, world=2, **variables) for rank in range(2)]
    until(lambda: pluto.runs and pluto.runs[1]["joined"] and len(pluto.runs[1]["metrics"]) > 20, "they report")
    for process in started:
        process.send_signal(signal.SIGTERM)
    ends = [ranks.end(process, 75)[1] for process in started]
    run = pluto.runs[1]
    for rank, facts in enumerate(ends):
        assert series(run, f"node-{rank}/loss") == list(range(facts["last"] + 1)), "all until the signal"
    assert not terminal(run), "the run is still open"
    first = ends[0]["last"] + 1
    ranks.end(ranks.start("--first", first, "--steps", 5, **variables))
    assert list(pluto.runs) == [1]
    assert series(run, "loss") == list(range(first + 5))
    assert terminal(run) == ["COMPLETED"]


@pytest.mark.parametrize(
    "end,restarts,attempt,status",
    [("failed", "0", "0", ["FAILED"]), ("failed", "1", "0", []), ("failed", "1", "1", ["FAILED"])],
)
def test_a_failed_run_is_marked_failed_only_if_no_attempt_follows(
    ranks: Ranks, pluto: Server, end: str, restarts: str, attempt: str, status: list[str]
) -> None:
    variables = pluto_at(pluto.server_port, GPU_CHARTS_MAX_RESTARTS=restarts, ATTEMPT=attempt)
    ranks.end(ranks.start("--steps", 3, "--end", end, **variables))
    assert terminal(pluto.runs[1]) == status
    assert series(pluto.runs[1], "loss") == [0, 1, 2]


def test_records_of_a_killed_rank_are_sent_and_its_run_is_marked_failed(ranks: Ranks, pluto: Server) -> None:
    process = ranks.start("--steps", 100000, **pluto_at(pluto.server_port))
    until(lambda: pluto.runs and pluto.runs[1]["metrics"], "it reports")
    process.kill()
    until(lambda: terminal(pluto.runs[1]), "its sender ends the run")
    assert terminal(pluto.runs[1]) == ["FAILED"]
    found = series(pluto.runs[1], "loss")
    assert found == list(range(len(found)))
    until(lambda: not list(ranks.tmp.iterdir()), "it cleans up")


def test_a_run_id_that_pluto_would_misinterpret_is_refused_before_any_request(ranks: Ranks, pluto: Server) -> None:
    process = ranks.start(**pluto_at(pluto.server_port, PLUTO_RUN_ID="20261121"))
    output, _ = ranks.end(process, 2)
    assert "PLUTO_RUN_ID=20261121" in output and "run-20261121" in output and "trains" not in output
    assert not pluto.requests and os.listdir(ranks.tmp) == []
