"""What both programs promise: a result that neither the number of ranks nor a run that is cut off
changes.
"""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from hack.paths import REPO
from tests.helpers.train_runs import LM, SMOKE, Ranks, cut_off, hashes, language_model, text_file

CUTS = int(os.environ.get("CUTS", 2))  # of each program, signal and world
EVERY = ("--save-every", 5)


class Program(NamedTuple):
    module: str
    slow: str  # file of the variant that can be cut off
    flags: Callable[[int], tuple[object, ...]]  # of a number of ranks: two epochs
    steps: int  # of an epoch, the last one with fewer samples

    def run(self, folder: Path, world: int, *more: object) -> Ranks:
        return Ranks(self.module, folder, *self.flags(world), *more, world=world).end()

    def cut_off(
        self, folder: Path, step: int, number: signal.Signals, world: int, *more: object
    ) -> Ranks:
        return cut_off(self.slow, folder, step, number, *self.flags(world), *more, world=world)


@pytest.fixture(scope="module", params=[SMOKE, LM])
def program(request, tmp_path_factory) -> Program:
    slow = str(REPO / "tests/launch_programs/slow_")
    if request.param == SMOKE:
        small = ("--samples", 754, "--features", 16)
        return Program(
            SMOKE, f"{slow}training.py", lambda world: (*small, "--batch", 64 // world), 12
        )
    folder = tmp_path_factory.mktemp("model")
    # Neither 130 samples nor 37 give each rank of four one in the last step.
    files = ("--data", text_file(folder, 130), "--val", text_file(folder, 37, seed=2))
    flags = (*language_model(folder), *files, "--epochs", 2, "--set", "logging_steps=1")
    return Program(LM, f"{slow}language_model.py", lambda world: flags, 17)


def test_the_result_does_not_depend_on_the_number_of_ranks(tmp_path, program):
    losses = [float(program.run(tmp_path / str(n), n).fact("EPOCH", "val_loss")) for n in (1, 2, 4)]
    assert max(losses) - min(losses) < 1e-5, losses


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_cut_off_ends_with_the_same_bits(tmp_path, program, number, world):
    program.run(tmp_path / "whole", world, *EVERY)
    for cut in range(CUTS):
        folder = tmp_path / str(cut)
        first = program.cut_off(
            folder, random.randrange(1, 2 * program.steps - 1), number, world, *EVERY
        )
        assert set(first.wait()) == ({75} if number == signal.SIGTERM else {-9}), first.all_output
        made = [path.name for path in (folder / "run").glob("epoch-*")]
        # The end of an epoch has no step in its name.
        newest = max(made, key=lambda name: (name[:10], name[10:] or "~"), default="no")
        assert program.run(folder, world, *EVERY).fact("TRAIN", "resumed") == newest
        assert hashes(folder, "epoch-0002") == hashes(tmp_path / "whole", "epoch-0002")
        assert not list((folder / "run").glob("checkpoint-*")), "what was cut off takes no space"


def test_a_stop_after_the_last_step_of_an_epoch_loses_no_evaluation(tmp_path, program):
    first = program.cut_off(tmp_path, program.steps - 1, signal.SIGTERM, 1).end(75)
    assert first.output.count("[EPOCH]") + program.run(tmp_path, 1).output.count("[EPOCH]") == 2
