"""train.py: what it learns, saves and resumes, and what it refuses."""

import os
import signal
from pathlib import Path

import pytest

from hack.paths import REPO
from tests.helpers.processes import until
from tests.helpers.train_runs import SMOKE, Ranks, checkpoints, cut_off, hashes, on_small_disk

# 24 steps of all ranks together in two epochs, the last of each with fewer samples.
SMALL = ("--samples", 754, "--features", 16)
EVERY = ("--save-every", 5)
SLOW = str(REPO / "tests" / "launch_programs" / "slow_training.py")


def run(
    folder: Path, *arguments: object, world: int = 1, code: int = 0, **variables: object
) -> Ranks:
    size = ("--batch", 64 // world)
    return Ranks(SMOKE, folder, *SMALL, *size, *arguments, world=world, **variables).end(code)


WRONG = """\
--batch 0
--epochs x
--lr nan
--lr 0
--seed -1
--output s3://bucket
--save-every -1
--run-id a/b
--run-id ..
--no-such
"""


@pytest.mark.parametrize("flags", WRONG.splitlines())
def test_wrong_flags_end_with_2_and_make_no_folder(tmp_path, monkeypatch, flags):
    monkeypatch.chdir(tmp_path)
    done = Ranks(SMOKE, tmp_path / "out", *flags.split()).end(2)
    assert flags.split()[0] in done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"], "no folder called s3:"
    assert not (tmp_path / "out" / "run").exists()


def test_it_learns_and_says_so(tmp_path):
    done = run(tmp_path)
    tags = [line[1:].partition("]")[0] for line in done.output.splitlines()]
    assert [*dict.fromkeys(tags)] == ["DDP", "TRAIN", "STEP", "EPOCH", "DONE"]
    assert done.fact("DONE", "status") == "finished" and float(done.fact("DONE", "val_loss")) < 0.1
    assert os.readlink(tmp_path / "run" / "best") in checkpoints(tmp_path)


@pytest.mark.parametrize("samples", [1, 3])
def test_more_ranks_than_samples_work(tmp_path, samples):
    ranks = Ranks(SMOKE, tmp_path, "--samples", samples, "--lr", 0.1, "--epochs", 9, world=4)
    assert set(ranks.wait()) <= {0, 3}, ranks.all_output


def test_what_does_not_learn_ends_with_3(tmp_path):
    assert run(tmp_path, "--lr", 1e-9, code=3).fact("DONE", "status") == "not-learned"


@pytest.mark.parametrize("world", [1, 2])
def test_a_loss_that_is_not_finite_ends_all_ranks_with_3(tmp_path, world):
    ranks = Ranks(SMOKE, tmp_path, *SMALL, "--lr", 1e30, world=world)
    assert set(ranks.wait()) == {3} and ranks.all_output.count("[FATAL]") == world, ranks.all_output


def test_another_number_of_ranks_goes_on_at_the_same_sample(tmp_path):
    first = cut_off(SLOW, tmp_path, 7, signal.SIGTERM, *SMALL, "--batch", 32, world=2).end(75)
    second = run(tmp_path, "--batch", 16, world=4)
    steps = [*map(int, second.facts("STEP", "step"))]
    stopped = int(first.fact("DONE", "step"))
    assert steps == list(range(stopped + 1, 25))
    alone = float(run(tmp_path / "alone").fact("DONE", "val_loss"))
    assert abs(float(second.fact("DONE", "val_loss")) - alone) < 1e-5


def test_without_output_a_stop_is_no_request_for_another_start(tmp_path):
    cut_off(SLOW, tmp_path, 5, signal.SIGTERM, "--output", "", *SMALL, "--batch", 64).end(143)


def test_a_damaged_checkpoint_is_left_out(tmp_path):
    run(tmp_path, *EVERY)
    newest = tmp_path / "run" / "epoch-0002" / "rank-0" / "state.pt"
    newest.write_bytes(newest.read_bytes()[:1000])
    second = run(tmp_path, *EVERY)
    assert second.fact("TRAIN", "unreadable") == "epoch-0002"
    assert second.fact("TRAIN", "resumed") == "epoch-0002-step-00000020"


def test_other_data_are_refused(tmp_path):
    run(tmp_path)
    before = hashes(tmp_path, "epoch-0002")
    assert "FATAL" in run(tmp_path, "--seed", 7, code=2).output
    assert hashes(tmp_path, "epoch-0002") == before


def test_a_second_writer_is_refused(tmp_path):
    first = Ranks(SLOW, tmp_path, *SMALL, "--batch", 64, "--epochs", 10_000)
    until(lambda: "[STEP]" in first.output, "the first one trains")
    run(tmp_path, code=1)
    os.kill(first.processes[0].pid, signal.SIGTERM)
    first.end(75)


def test_the_launcher_names_a_full_disk(tmp_path):
    """On a file system of 1 MB, which holds two checkpoints, in a namespace of its own."""
    train = ["gpuworker.launch.launcher", "--standalone", "-m", SMOKE, *EVERY, "--output", tmp_path]
    done = on_small_disk(tmp_path, 1, *train)
    assert done.returncode == 1 and " cause=disk-full " in done.stdout + done.stderr
