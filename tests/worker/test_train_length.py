"""Length of a run, evaluations within it, and what each step reports."""

from __future__ import annotations

import itertools

import pytest

from gpuworker.train import train_framework, train_smoke, trainer
from gpuworker.train.checkpoint import Checkpointer
from gpuworker.train.schedule import BatchLayout, RunSchedule, learning_rate
from gpuworker.train.train_state import TrainState
from tests.helpers.train_worlds import LM, SMOKE, Ranks, checkpoints, report, train

# 16 steps per epoch.
WORDS = ("--device", "cpu", "--samples", 512, "--batch", 32, "--keep", 99)


def smoke(folder, *words: object) -> int:
    return train_smoke.main([str(word) for word in (*WORDS, "--output", folder, *words)])


@pytest.fixture
def saved(monkeypatch) -> list[tuple[int, int]]:
    """Orders of the checkpoints that are saved."""
    found, commit = [], Checkpointer.commit

    def record(self, partial, name, order, *rest):
        found.append(tuple(order))
        return commit(self, partial, name, order, *rest)

    monkeypatch.setattr(Checkpointer, "commit", record)
    return found


def test_the_last_step_of_an_epoch_is_saved_once(tmp_path, saved):
    assert smoke(tmp_path, "--save-every", 8, "--epochs", 2) == 0
    assert saved == [(8, 0), (16, 1), (24, 0), (32, 1)]


@pytest.mark.parametrize("steps", [16, 21])
def test_a_run_ends_after_max_steps_with_an_evaluation_and_a_checkpoint(tmp_path, saved, steps, capfd):
    assert smoke(tmp_path, "--epochs", 9, "--max-steps", steps) == 0
    made = report(tmp_path)
    assert made["summary"]["step"] == made["evaluations"][-1]["step"] == steps
    assert saved[-1] == (steps, 1) and len(saved) == len(set(saved))
    assert f"step=1/{steps} " in capfd.readouterr().out
    assert smoke(tmp_path, "--epochs", 9, "--max-steps", steps) == 0
    assert "nothing_to_do=" in capfd.readouterr().out and saved[-1] == (steps, 1)
    assert smoke(tmp_path, "--epochs", 9, "--max-steps", steps + 2) == 0
    assert report(tmp_path)["summary"]["step"] == steps + 2


@pytest.mark.parametrize("words", [("--batch", 10**11), ("--batch", 60, "--grad-accum", 10**8)])
def test_a_batch_larger_than_the_data_trains_on_all_of_it_in_each_step(tmp_path, words, capfd):
    assert smoke(tmp_path / "all", "--samples", 100, "--batch", 100, "--epochs", 3) in (0, 3)
    assert smoke(tmp_path / "more", "--samples", 100, *words, "--epochs", 3) in (0, 3)
    histories = [[each["loss"] for each in report(tmp_path / name)["history"]] for name in ("all", "more")]
    assert len(histories[1]) == 3 and histories[1] == pytest.approx(histories[0], rel=1e-5)
    assert "larger than the data" in capfd.readouterr().out
    (tmp_path / "ranks").mkdir()
    words = (*WORDS, "--samples", 100, *words, "--epochs", 3, "--output", tmp_path / "ranks")
    again = Ranks(SMOKE, words, 2, tmp_path)
    assert set(again.wait()) <= {0, 3}, again.all_output()
    assert [each["loss"] for each in report(tmp_path / "ranks")["history"]] == pytest.approx(histories[0], rel=1e-5)
    assert "samples_per_step=100 " in again.output


@pytest.mark.parametrize("preset, code", [("gpt2-tiny", 2), ("llama-tiny", 0)])
def test_a_length_that_no_data_have_is_refused_if_it_costs_memory(tmp_path, preset, code, capfd):
    """GPT-2 has a parameter for each position, and Llama has none."""
    words = ("--from-scratch", preset, "--seq-len", 10**9, "--max-steps", 1, "--device", "cpu", "--cache", tmp_path)
    (tmp_path / "data.jsonl").write_text('{"text": "some words"}\n' * 9)
    assert train_framework.main([str(word) for word in (*words, "--data", tmp_path / "data.jsonl")]) == code
    output = capfd.readouterr().out
    assert ("[FATAL]" in output) == (code == 2) and "Traceback" not in output


def test_the_schedule_ends_with_max_steps():
    schedule = RunSchedule(samples=100, epochs=10, layout=BatchLayout(10, 1, 1), max_steps=20)
    half = TrainState(epoch=1, position=0, step=10)
    assert schedule.fraction_done(half) == 0.5 and schedule.total_steps(half) == 20 and schedule.steps_to_go(half) == 10
    assert schedule.warmup_fraction(5) == 0.25 and schedule.epochs_done(half) == 1
    assert schedule.is_done(TrainState(epoch=2, step=20)) and not schedule.is_done(half)
    assert learning_rate(1.0, 1.0, 0.1, "cosine", 0.0) == pytest.approx(0.0, abs=1e-9)
    assert learning_rate(1.0, 1.0, 0.1, "cosine", 0.25) == pytest.approx(0.25)


def test_an_evaluation_within_an_epoch_may_find_the_best_checkpoint(tmp_path, saved):
    assert smoke(tmp_path, "--epochs", 1, "--eval-every", 4, "--lr", 1e-3) in (0, 3)
    assert [each["step"] for each in report(tmp_path)["evaluations"]] == [4, 8, 12, 16]
    assert [order for order in saved if order[1]] == [(4, 1), (8, 1), (12, 1), (16, 1)]  # each is better than the last
    assert (tmp_path / "run" / "best").readlink().name == "epoch-0001"


@pytest.mark.parametrize("number", [3])
def test_a_stop_during_an_evaluation_within_an_epoch_repeats_only_that_evaluation(tmp_path, monkeypatch, number):
    words = ("--epochs", 2, "--eval-every", 6, "--lr", 1e-3)
    assert smoke(tmp_path / "whole", *words) in (0, 3)
    real, calls = trainer.evaluate, itertools.count(1)

    def stopped(module, spec, context, stop, *rest):
        if next(calls) == number:
            stop.request()
        return real(module, spec, context, stop, *rest)

    monkeypatch.setattr(trainer, "evaluate", stopped)
    assert smoke(tmp_path / "parts", *words) == 75
    assert smoke(tmp_path / "parts", *words) in (0, 3)
    whole, parts = report(tmp_path / "whole"), report(tmp_path / "parts")
    assert [(each["step"], each["loss"]) for each in whole["evaluations"]] == [
        (each["step"], each["loss"]) for each in parts["evaluations"]
    ]
    links = [(folder / "run" / "best").resolve().name for folder in (tmp_path / "whole", tmp_path / "parts")]
    assert links[0] == links[1]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_a_new_run_may_start_from_the_weights_of_another_one(tmp_path, engine):
    train(tmp_path, "--max-steps", 20)
    words = (
        "--model-local-dir",
        tmp_path / "run" / "latest" / "rank-0",
        "--run",
        "second",
        "--lr",
        0,
        "--max-steps",
        1,
    )
    words = (*words, "--seq-len", 64, "--device", "cpu", "--output", tmp_path, "--engine", engine)
    second = Ranks(LM, words, 2, tmp_path)
    assert second.wait() == [0, 0], second.all_output()
    first, then = report(tmp_path), report(tmp_path, "second")
    assert then["summary"]["step"] == 1 and "resumed=no" in second.output
    assert then["evaluations"][-1]["loss"] == pytest.approx(first["evaluations"][-1]["loss"], rel=1e-6)


def test_every_step_reports_gradient_norm_and_memory(tmp_path, capfd):
    assert smoke(tmp_path, "--epochs", 1, "--clip", 0.001, "--betas", "0.8,0.95") in (0, 3)
    line = next(each for each in capfd.readouterr().out.splitlines() if each.startswith("[STEP]"))
    assert "grad_norm=" in line and "memory=" in line
    made = report(tmp_path)
    # The norm before it was clipped, and the memory of this process.
    assert all(entry["grad_norm"] > 0.001 and entry["memory_bytes"] > 2**20 for entry in made["history"])
    assert made["settings"][-1]["betas"] == [0.8, 0.95]


def test_names_of_checkpoints_differ_for_the_same_step_before_and_after_its_evaluation(tmp_path):
    assert smoke(tmp_path, "--epochs", 1, "--eval-every", 8, "--save-every", 8) in (0, 3)
    assert checkpoints(tmp_path) == ["epoch-0001", "epoch-0001-step-00000008-evaluated"]
