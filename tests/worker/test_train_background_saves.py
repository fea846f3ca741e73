"""Saves in the background: training goes on with a copy's write, and what is committed is the state that was copied."""

from __future__ import annotations

import json
import signal
import threading
import time

import pytest

from gpuworker.train import (
    checkpoint,
    checkpoint_files,
    memory,
    optimizer,
    preemption,
    train_framework,
    train_smoke,
    trainer,
)
from gpuworker.train.checkpoint import Checkpointer
from gpuworker.train.checkpoint_files import MANIFEST
from gpuworker.train.run_checkpoints import RunCheckpoints
from tests.helpers.train_worlds import checkpoints

ENGINES = pytest.mark.parametrize("engine", ["ddp", "fsdp"])
HELD = "epoch-0001-step-00000005"  # the save whose end is held up
PATIENCE_S = 60


@pytest.fixture(autouse=True)
def handlers():
    """The handlers of signals that a program in this process replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def main(folder, *words: object, program=train_smoke) -> int:
    return program.main([str(word) for word in ("--device", "cpu", "--output", folder, "--keep", 99, *words)])


def digests(folder, name: str) -> dict[str, str]:
    """SHA-256 of the files of a checkpoint that contain tensors."""
    files = json.loads((folder / "run" / name / MANIFEST).read_text())["files"]
    return {file: entry["sha256"] for file, entry in files.items() if file.endswith((".pt", ".safetensors", ".distcp"))}


class Hold:
    """Holds up the commit of a checkpoint until the trainer has begun a later step. `late`: it had to give up."""

    def __init__(self, monkeypatch, name: str, until_step: int) -> None:
        self.reached, self.late, self.saving, self.most = threading.Event(), False, 0, 0
        commit, step = Checkpointer.commit, trainer.Trainer.train_step

        def held(checkpointer, partial, given, *rest):
            self.saving += 1
            self.most = max(self.most, self.saving)
            if given == name:
                self.late = not self.reached.wait(20)
            done = commit(checkpointer, partial, given, *rest)
            self.saving -= 1
            return done

        def counted(this):
            if this.state.step >= until_step:
                self.reached.set()
            step(this)

        monkeypatch.setattr(Checkpointer, "commit", held)
        monkeypatch.setattr(trainer.Trainer, "train_step", counted)


@ENGINES
def test_training_goes_on_while_a_checkpoint_is_written_and_it_has_the_state_of_its_step(
    tmp_path, monkeypatch, engine, capfd
):
    words = ("--engine", engine, "--save-every", 5, "--epochs", 1)
    assert main(tmp_path / "a", *words) == 0
    hold = Hold(monkeypatch, HELD, until_step=9)
    assert main(tmp_path / "b", *words) == 0
    assert not hold.late
    assert checkpoints(tmp_path / "a") == checkpoints(tmp_path / "b")
    for name in checkpoints(tmp_path / "a"):
        assert digests(tmp_path / "a", name) == digests(tmp_path / "b", name), name
        assert digests(tmp_path / "a", name)
    lines = [line for line in capfd.readouterr().out.splitlines() if f"saved={HELD} " in line]
    assert len(lines) == 2 and all(" paused=" in line for line in lines)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # of peft
@pytest.mark.parametrize("model", [("gpt2-tiny",), ("llama-tiny", "--lora")])
def test_a_copied_model_is_written_as_the_model_itself(tmp_path, monkeypatch, model):
    """GPT-2 has one tensor under two names; with adapters the frozen weights are not copied."""
    words = ("--from-scratch", *model, "--seq-len", 32, "--batch", 4, "--max-steps", 6, "--save-every", 5,
             "--cache", tmp_path)  # fmt: skip
    hold = Hold(monkeypatch, HELD, until_step=5)
    assert main(tmp_path / "a", *words, program=train_framework) == 0 and not hold.late
    monkeypatch.setattr(memory, "free_bytes", lambda: 0)  # the model itself
    hold.reached.set()
    assert main(tmp_path / "b", *words, program=train_framework) == 0
    assert digests(tmp_path / "a", HELD) == digests(tmp_path / "b", HELD) != {}


@ENGINES
def test_a_host_without_memory_for_the_copy_waits_for_the_save(tmp_path, monkeypatch, engine, capfd):
    needed = []
    fits = RunCheckpoints.copy_fits

    def recorded(self, model):
        needed.append(model.copy_bytes())
        monkeypatch.setattr(memory, "free_bytes", lambda: needed[-1] - (len(needed) > 1))
        return fits(self, model)

    monkeypatch.setattr(RunCheckpoints, "copy_fits", recorded)
    assert main(tmp_path, "--engine", engine, "--save-every", 5, "--epochs", 1, "--features", 512) == 0
    output = capfd.readouterr().out
    # The first save has exactly the memory that it needs, all others one byte less. The last one needs no copy.
    assert len(needed) == 3 and output.count("no memory for a copy") == 2, output
    largest = max(
        sum(path.stat().st_size for path in (tmp_path / "run" / name).rglob("*") if path.suffix in (".pt", ".distcp"))
        for name in checkpoints(tmp_path)
    )
    assert 0.8 * largest < needed[0] < 1.2 * largest


def test_one_save_at_a_time(tmp_path, monkeypatch):
    hold = Hold(monkeypatch, "none", until_step=99)
    sha256_of = checkpoint_files.sha256_of
    monkeypatch.setattr(checkpoint, "sha256_of", lambda path: (time.sleep(0.05), sha256_of(path))[1])
    assert main(tmp_path, "--save-every", 1, "--epochs", 1) == 0
    assert hold.most == 1 and len(checkpoints(tmp_path)) == 16


@ENGINES
def test_a_stop_waits_for_the_save_that_runs_and_saves_its_own_state(tmp_path, monkeypatch, engine):
    hold = Hold(monkeypatch, HELD, until_step=99)
    step = trainer.Trainer.train_step
    signals = []
    install = preemption.StopSignal.install
    monkeypatch.setattr(preemption.StopSignal, "install", lambda self: (signals.append(self), install(self))[1])

    def stopped(this):
        step(this)
        if this.state.step == 7:
            signals[0].request()
            threading.Timer(1, hold.reached.set).start()

    monkeypatch.setattr(trainer.Trainer, "train_step", stopped)
    assert main(tmp_path, "--engine", engine, "--save-every", 5, "--epochs", 1) == 75
    assert not hold.late and HELD in checkpoints(tmp_path)
    assert Checkpointer(tmp_path / "run", keep=99).load_newest().order[0] in (7, 8)


def test_a_run_that_ends_at_the_step_of_a_save_that_fails_saves_again(tmp_path, monkeypatch, capfd):
    """The state counts as saved while it is saved, and no longer when that has failed."""
    save, calls = optimizer.save, []

    def fail_once(*rest):
        calls.append(1)
        if len(calls) == 1:
            raise OSError(5, "Input/output error")
        save(*rest)

    monkeypatch.setattr(optimizer, "save", fail_once)
    data = tmp_path / "train.jsonl"  # without validation data, so that the end of the run is no other state
    data.write_text("".join(json.dumps({"text": f"Line {number} of the data."}) + "\n" for number in range(200)))
    words = ("--from-scratch", "gpt2-tiny", "--data", data, "--seq-len", 16, "--batch", 4, "--cache", tmp_path)
    assert main(tmp_path, *words, "--max-steps", 5, "--save-every", 5, program=train_framework) == 0
    assert len(calls) == 2 and checkpoints(tmp_path) == [HELD]
    assert "save_failed=" in capfd.readouterr().out
