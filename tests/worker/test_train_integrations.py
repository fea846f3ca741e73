"""Callbacks for other training libraries: their own decisions, with the classes of the library."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from transformers import TrainerControl, TrainerState

from gpuworker.integrations import accelerate_loop, huggingface
from tests.helpers.processes import environment


class Arguments:
    save_only_model = False


@pytest.fixture
def sigterm():
    """The handler of SIGTERM is as before after the test."""
    before = signal.getsignal(signal.SIGTERM)
    yield lambda: os.kill(os.getpid(), signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)


def step(callback, control, state) -> None:
    callback.on_step_begin(Arguments(), state, control)
    callback.on_step_end(Arguments(), state, control)


def test_sigterm_saves_at_the_next_step_without_an_evaluation_and_exits_with_75(sigterm, capsys):
    callback, control, state = huggingface.LaunchCallback(), TrainerControl(), TrainerState(global_step=7)
    callback.on_train_begin(Arguments(), state, control)
    step(callback, control, state)
    callback.on_save(Arguments(), state, control)  # a save of Trainer's own ends nothing
    assert not control.should_save
    sigterm()
    control.should_evaluate = True
    step(callback, control, state)
    assert control.should_save and not control.should_evaluate
    with pytest.raises(SystemExit) as end:
        callback.on_save(Arguments(), state, control)
    assert end.value.code == 75
    assert "status=saved exit_code=75 step=7 checkpoint=checkpoint-7" in capsys.readouterr().out


def test_the_stop_of_a_run_that_has_ended_ends_no_process():
    """The training's own stop ends the process before the first step, and only then."""
    program = (
        "import os, signal, sys, time\n"
        "from gpuworker.train.train_smoke import main\n"
        "try:\n    main(['--no-such-flag'])\n"
        "except SystemExit as end:\n    assert end.code == 2\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "time.sleep(1)\n"
        "sys.exit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], env=environment(), timeout=120).returncode == 7


def test_a_run_that_could_not_resume_is_refused():
    arguments = Arguments()
    arguments.save_only_model = True
    with pytest.raises(ValueError, match="save_only_model"):
        huggingface.LaunchCallback().on_train_begin(arguments, TrainerState(), TrainerControl())


def test_the_newest_complete_checkpoint_is_taken(tmp_path):
    assert huggingface.newest_checkpoint(tmp_path / "absent") is None
    for number, text in (
        (9, json.dumps({"global_step": 9})),
        (10, json.dumps({"global_step": 10})),
        (11, '{"glob'),
        (12, None),
    ):
        folder = tmp_path / f"checkpoint-{number}"
        folder.mkdir()
        if text:
            (folder / "trainer_state.json").write_text(text)
    assert huggingface.newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")


@pytest.fixture
def accelerator(sigterm):
    """accelerator() is one process's; it leaves no variables and no state behind."""
    before = dict(os.environ)
    yield lambda: Accelerator(cpu=True)
    AcceleratorState._reset_state(reset_partial_state=True)
    os.environ.clear()
    os.environ.update(before)


def train(loop, layer, steps, after_step=lambda step: None) -> int:
    """Add 1 to the weight in each step; returns the step at which the loop started."""
    first = loop.resume()
    for step in range(first, steps):
        loop.start_step()
        with torch.no_grad():
            layer.weight += 1
        after_step(step)
        loop.end_step(step + 1, log_every=2, weight=layer.weight)
    return first


def layer_in(accelerator) -> torch.nn.Module:
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    return accelerator.prepare(layer)


def test_a_loop_with_accelerate_saves_on_sigterm_and_resumes(tmp_path, accelerator, sigterm, capsys):
    (tmp_path / ".partial-00000005").mkdir()  # left by a kill during a save of more ranks
    (tmp_path / ".partial-00000005" / "random_states_7.pkl").touch()
    first = accelerator()
    with pytest.raises(SystemExit) as end:
        train(
            accelerate_loop.LaunchedLoop(first, tmp_path, 2), layer_in(first), 9, lambda step: step == 4 and sigterm()
        )
    assert end.value.code == 75
    assert "status=saved exit_code=75 step=5 checkpoint=step-00000005" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000004", "step-00000005"]
    assert not (tmp_path / "step-00000005" / "random_states_7.pkl").exists()
    second = accelerator()
    layer = layer_in(second)
    assert train(accelerate_loop.LaunchedLoop(second, tmp_path, 100), layer, 6) == 5
    assert layer.weight.item() == 6
    assert "step=6 weight=6" in capsys.readouterr().out


def test_checkpoints_that_accelerate_names_itself_are_refused(tmp_path, accelerator):
    made = accelerator()
    made.project_configuration.automatic_checkpoint_naming = True
    with pytest.raises(ValueError, match="automatic_checkpoint_naming"):
        accelerate_loop.LaunchedLoop(made, tmp_path)
