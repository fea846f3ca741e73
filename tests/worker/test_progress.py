"""A collective that hangs names the ranks that did not arrive, before the check's own deadline ends
it.
"""

import json
import os
import signal
import time

import pytest

from gpuworker.accept.check_process import SLACK_S
from gpuworker.accept.distributed import local_world
from gpuworker.judgement import registry
from gpuworker.judgement.check_spec import Plan
from gpuworker.runtime.processes import child_pids
from tests.helpers.processes import alive, until

CHECKS = registry.node_checks().values()


@pytest.mark.parametrize(
    ("entered", "ranks", "words"),
    [
        ([2, 1, 2], [1], "rank 1 did not arrive at call 2, where 2 of 3 ranks wait"),
        ([0, 3, 0], [0, 2], "ranks 0, 2 did not arrive at call 3, where 1 of 3 ranks wait"),
        ([2, 2, 2], [], "no rank has passed call 2"),
        ([0, 0, 0], [], ""),
    ],
)
def test_ranks_that_did_not_arrive(entered, ranks, words):
    last = [(count, f"call {count}" * (count > 0)) for count in entered]
    assert local_world.late(last, range(len(last))) == (ranks, words)


@pytest.mark.parametrize("level", ["quick", "full", "burn-in"])
def test_a_collective_times_out_before_its_check(level):
    for check in CHECKS:
        deadline_s = 3 * check.seconds.get(level, 60) + SLACK_S["cuda"]
        plan = Plan("cuda", 8, level, deadline_s=deadline_s)
        assert (
            15 <= local_world.timeout_s(plan) <= local_world.store_timeout_s(plan) <= deadline_s / 2
        ), check.name


def stopped(context, place: str) -> dict:
    context.enter(place)
    if context.rank == min(1, context.size - 1):
        os.kill(os.getpid(), signal.SIGSTOP)
    return {}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("processes", "place", "words"),
    [
        (
            3,
            "step 7",
            r"rank 1 did not arrive at the end of its program, where 2 of 3 ranks wait; rank 1 is stopped",
        ),
        (1, "step 7", r"no rank has passed step 7; rank 0 is stopped by a signal$"),
    ],
    ids=["the others have returned", "no other rank"],
)
def test_a_rank_for_which_no_collective_waits_is_named(
    tmp_path, monkeypatch, processes, place, words
):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    plan = Plan("cpu", 0, scratch=tmp_path, processes=processes, deadline_s=20)
    start = time.monotonic()
    with pytest.raises(local_world.BrokenWorldError, match=words):
        local_world.run(plan, stopped, place=place)
    assert time.monotonic() - start < plan.deadline_s, (
        "else the runner ends the check, which names no rank"
    )


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0, 0.3, 2])
def test_a_stopped_rank_of_the_training_is_named(start, tmp_path, seconds):
    """Wherever it is: before the process group, in it, or in a step. Its siblings do not wait for
    its end.
    """
    run = start(
        "-m", "gpuworker.accept.accept_node", "--device", "cpu", "--check", "training", "--check-timeout", 90,
        "--level", "burn-in", "--processes", 3, "--report-dir", tmp_path, GLOO_SOCKET_IFNAME="lo", TMPDIR=tmp_path,
    )  # fmt: skip
    ranks = until(lambda: world_of(run.process.pid), "three ranks of a world")
    time.sleep(seconds)
    os.kill(ranks[1], signal.SIGSTOP)
    assert run.wait() == 3, run.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert "rank 1 is stopped by a signal" in report["reason"], report["reason"]
    assert not [pid for pid in ranks if alive(pid)]


def world_of(pid: int) -> list[int]:
    """The ranks below the process of a check, the first rank first."""
    return next(
        (sorted(ranks) for check in child_pids(pid) if len(ranks := child_pids(check)) == 3), []
    )
