"""Runs that are killed at random moments continue from a complete checkpoint and end with the same result.

KILLS=20 pytest tests/worker/test_train_kills.py      for more moments than the usual four; SEED=… for others
"""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from gpuworker.train.checkpoint import Checkpointer
from tests.helpers.train_worlds import LM, TINY, Ranks, losses, report, train, weights

EACH = 4  # kills of one run
KILLS = int(os.environ.get("KILLS", EACH))
SEED = int(os.environ.get("SEED", "1"))
# A save takes longer than three steps of so small a model: many moments hit one.
OPTIONS = ("--batch", 4, "--save-every", 3, "--keep", 2)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    train(folder, *OPTIONS, world=2)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("number", range(-(-KILLS // EACH)))
def test_a_run_killed_at_random_moments_ends_with_the_same_weights_and_losses(uninterrupted, tmp_path, number):
    moments, steps = random.Random(f"{SEED}-{number}"), report(uninterrupted)["summary"]["step"]
    ends = []
    for kill in range(EACH):
        ranks = Ranks(LM, (*TINY, "--output", tmp_path, *OPTIONS), 2, tmp_path)
        # A step in this part of the run; the moment within the step, or within the save after it, is random.
        # 0: during the start.
        step = moments.randint(steps * kill // EACH, steps * (kill + 1) // EACH - 1) if moments.random() < 0.8 else 0
        logged = 0
        while logged < step and None in [process.exitcode for process in ranks.processes]:
            lines = [line for line in ranks.output.splitlines() if line.startswith("[STEP]")]
            logged = int(lines[-1].partition("step=")[2].partition("/")[0]) if lines else 0
            time.sleep(0.001)
        time.sleep(moments.random() * 0.05)
        kind = moments.choice([signal.SIGKILL, signal.SIGTERM])
        ranks.signal(kind, moments.choice([[0], [1], [0, 1]]))
        codes = ranks.wait()
        ends.append((kind.name, step, codes))
        if step == 0:  # the signal may arrive before a rank handles it
            assert 0 not in codes, f"{ends}\n{ranks.all_output()}"
        elif kind == signal.SIGTERM:
            assert set(codes) == {75}, f"{ends}\n{ranks.all_output()}"
        else:
            assert -signal.SIGKILL in codes, f"{ends}\n{ranks.all_output()}"
        assert "ignored=" not in ranks.all_output(), f"{ends}\n{ranks.all_output()}"
        # The next attempt resumes this checkpoint: complete, and not older than the last logged step.
        found = Checkpointer(tmp_path / "run", keep=9).load_newest()
        saved = found.order[0] if found else 0  # None: killed before the first save
        assert step == 0 or saved >= logged - 6, f"{ends}: logged step {logged}, found {saved}"
    last = train(tmp_path, *OPTIONS, world=2)
    assert "ignored=" not in last.output
    assert weights(tmp_path) == weights(uninterrupted), ends
    assert losses(tmp_path) == losses(uninterrupted), ends
    print(f"killed {len(ends)} times: {ends}")
