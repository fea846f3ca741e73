"""A collective that hangs names the ranks that did not arrive, before the check's own deadline ends it."""

import datetime
import signal
from dataclasses import replace

import pytest
import torch.distributed as dist

from gpuworker.accept import registry
from gpuworker.accept.check_process import SLACK_S
from gpuworker.accept.check_spec import WORLD, Plan
from gpuworker.accept.distributed import local_world
from gpuworker.accept.distributed.progress import Progress, late

CHECKS = registry.node_checks().values()


@pytest.mark.parametrize(
    ("entered", "words"),
    [
        ([2, 1, 2], "rank 1 did not arrive at call 2, where 2 of 3 ranks wait"),
        ([0, 3, 0], "ranks 0, 2 did not arrive at call 3, where 1 of 3 ranks wait"),
        ([2, 2, 2], ""),
        ([0, 0, 0], ""),
    ],
)
def test_ranks_that_did_not_arrive(tmp_path, entered, words):
    for rank, count in enumerate(entered):
        progress = Progress(tmp_path, rank) if count else None
        for number in range(count):
            progress.enter(f"call {number + 1}")
    assert late(tmp_path, len(entered)) == words


@pytest.mark.parametrize("level", ["quick", "full", "burn-in"])
def test_a_collective_times_out_before_its_check(level):
    for check in CHECKS:
        deadline_s = 3 * check.spec.seconds.get(level, 60) + SLACK_S["cuda"]
        plan = Plan("cuda", 8, level, deadline_s=deadline_s)
        assert 15 <= local_world.timeout_s(plan) <= local_world.store_timeout_s(plan) <= deadline_s / 2, check.name
        if check.spec.process == WORLD:  # the first of them has chosen it
            assert local_world.timeout_s(plan) == local_world.timeout_s(replace(plan, deadline_s=600)), check.name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_rank_that_hangs_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    plan = Plan("cpu", 0, scratch=tmp_path, processes=3)
    with pytest.raises(local_world.BrokenWorldError, match=r"rank 1 did not arrive at the barrier, where 2 of 3 ranks"):
        local_world.run(plan, hangs)


def hangs(context) -> dict:
    context.barrier("all are here")
    if context.rank == 1:
        signal.pause()
    context.enter("the barrier")
    context.post("entered", True)
    context.store.wait(["entered/0", "entered/2"])
    dist.barrier(async_op=True).wait(datetime.timedelta(seconds=1))
    return {}
