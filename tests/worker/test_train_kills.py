"""Killed at random moments, runs always go on from a whole checkpoint, and end as if nothing had happened.

KILLS=20 pytest tests/worker/test_train_kills.py      for more moments than the usual four; SEED=… for others
"""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from gpuworker.train.checkpoint import Store
from tests.helpers.train_worlds import LM, TINY, Ranks, losses, report, train, weights

EACH = 4  # kills of one run
KILLS = int(os.environ.get("KILLS", EACH))
SEED = int(os.environ.get("SEED", "1"))
# A save takes longer than three steps of so small a model: many moments hit one.
OPTIONS = ("--batch", 4, "--save-every", 3, "--keep", 2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    train(folder, *OPTIONS, world=2)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("number", range(-(-KILLS // EACH)))
def test_killed_at_random_moments(whole, tmp_path, number):
    moments, steps = random.Random(f"{SEED}-{number}"), report(whole)["summary"]["step"]
    ends = []
    for kill in range(EACH):
        ranks = Ranks(LM, (*TINY, "--output", tmp_path, *OPTIONS), 2, tmp_path)
        # Somewhere in this part of the run; what a step is made of, and the save after it, is left to the clock.
        # 0: at once, while it starts.
        step = moments.randint(steps * kill // EACH, steps * (kill + 1) // EACH - 1) if moments.random() < 0.8 else 0
        told = 0
        while told < step and None in [process.exitcode for process in ranks.processes]:
            lines = [line for line in ranks.said.splitlines() if line.startswith("[STEP]")]
            told = int(lines[-1].partition("step=")[2].partition("/")[0]) if lines else 0
            time.sleep(0.001)
        time.sleep(moments.random() * 0.05)
        kind = moments.choice([signal.SIGKILL, signal.SIGTERM])
        ranks.signal(kind, moments.choice([[0], [1], [0, 1]]))
        codes = ranks.wait()
        ends.append((kind.name, step, codes))
        if step == 0:  # it may come before a rank listens
            assert 0 not in codes, f"{ends}\n{ranks.say()}"
        elif kind == signal.SIGTERM:
            assert set(codes) == {75}, f"{ends}\n{ranks.say()}"
        else:
            assert -signal.SIGKILL in codes, f"{ends}\n{ranks.say()}"
        assert "ignored=" not in ranks.say(), f"{ends}\n{ranks.say()}"
        # What stands there now is what the next attempt takes: whole, and not older than the last one told of.
        found = Store(tmp_path / "run", keep=9).newest()
        saved = found.order[0] if found else 0  # none: it was killed before the first save
        assert step == 0 or saved >= told - 6, f"{ends}: told of step {told}, found {saved}"
    last = train(tmp_path, *OPTIONS, world=2)
    assert "ignored=" not in last.said
    assert weights(tmp_path) == weights(whole), ends
    assert losses(tmp_path) == losses(whole), ends
    print(f"killed {len(ends)} times: {ends}")
