"""LaunchedTrainer with a stand-in that calls it as torchtitan's Trainer.train does; torchtitan
itself needs a GPU.
"""

import os
import runpy
import signal
import sys
import types

import pytest

from hack.paths import REPO

EXAMPLE = REPO / "values-examples" / "ddp-run-torchtitan" / "code" / "train.py"


class Trainer:
    """The parts of torchtitan's Trainer that LaunchedTrainer uses."""

    Config = types.SimpleNamespace

    def __init__(self, config):
        self.config, self.step, self.saved = config, 0, []
        self.checkpointer = types.SimpleNamespace(
            last_save_model_only=True, save=self.save, close=lambda: None
        )
        self.metrics_processor = types.SimpleNamespace(log=lambda *rest, **more: None)

    def save(self, step, last_step=False):
        if last_step or step % self.config.checkpoint.interval == 0:
            self.saved.append(
                (step, "model" if last_step and self.checkpointer.last_save_model_only else "all")
            )

    def should_continue_training(self):
        return self.step < self.config.training.steps

    def train(self, stop_at=0):
        while self.should_continue_training():
            self.step += 1
            self.metrics_processor.log(self.step, 2.5, 2.5, 0.5, extra_metrics={})
            if self.step == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            self.checkpointer.save(self.step, last_step=self.step == self.config.training.steps)


@pytest.fixture
def launched(monkeypatch):
    stub = types.SimpleNamespace(Trainer=Trainer, ConfigManager=None, init_logger=None)
    for name in ("", ".trainer", ".config", ".tools", ".tools.logging"):
        monkeypatch.setitem(sys.modules, f"torchtitan{name}", stub)
    before = signal.getsignal(signal.SIGTERM)
    yield runpy.run_path(str(EXAMPLE))["LaunchedTrainer"]
    signal.signal(signal.SIGTERM, before)


def config(enable: bool = True) -> types.SimpleNamespace:
    checkpoint = types.SimpleNamespace(
        enable=enable, load_only=False, interval=4, folder="checkpoint"
    )
    return types.SimpleNamespace(checkpoint=checkpoint, training=types.SimpleNamespace(steps=10))


@pytest.mark.parametrize(
    ("stop_at", "saved"), [(3, [(3, "all")]), (4, [(4, "all")]), (5, [(4, "all"), (5, "all")])]
)
def test_sigterm_saves_once_what_a_run_resumes_from_and_exits_with_75(
    launched, capsys, stop_at, saved
):
    trainer = launched(config())
    with pytest.raises(SystemExit) as ended:
        trainer.train(stop_at)
    assert ended.value.code == 75 and trainer.saved == saved
    output = capsys.readouterr().out
    assert f"step={stop_at}/10" in output and f"checkpoint=checkpoint/step-{stop_at}" in output


def test_a_run_that_is_not_stopped_ends_as_torchtitan_ends_it(launched):
    trainer = launched(config())
    trainer.train()
    assert trainer.step == 10 and trainer.saved == [(4, "all"), (8, "all"), (10, "model")]


def test_a_run_without_checkpoints_is_refused(launched):
    with pytest.raises(ValueError, match=r"checkpoint\.enable"):
        launched(config(enable=False))
