"""Callbacks for other training libraries: their own decisions, with the classes of the library."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from gpuworker.train.integrations import accelerate_loop


@pytest.fixture
def sigterm():
    """The handler of SIGTERM is as before after the test."""
    before = signal.getsignal(signal.SIGTERM)
    yield lambda: os.kill(os.getpid(), signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)


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
