"""--fp16 with a loss scaler: for GPUs without bfloat16. Gradients that overflow lower the scale and end no run."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from gpuworker.runtime import process_group
from gpuworker.train import engine, optimizer, train_smoke
from gpuworker.train.optimizer import MAX_SKIPPED, MAX_SKIPPED_FP16, Updater
from tests.helpers.train_worlds import losses, report, train, weights

STEP = 0.1


def updater() -> Updater:
    return Updater([torch.nn.Parameter(torch.ones(3, 3))], lr=STEP, decay=0.0, clip=0.0, fp16=True)


def test_small_gradients_reach_the_weights_and_large_ones_lower_the_scale():
    found = updater()
    (layer,) = found.parameters
    scale = found.scaler.get_scale()
    # The gradient is 1e-8: float16 has nothing between 0 and 6e-8.
    found.scale((layer.half() * 1e-4).float().sum() * 1e-4).backward()
    found.step(STEP)
    assert found.norm == pytest.approx(3e-8, rel=0.01) and not torch.equal(layer.detach(), torch.ones(3, 3))
    before = layer.detach().clone()
    found.scale(layer.half().float().sum()).backward()
    assert not layer.grad.isfinite().all()
    found.step(STEP)
    assert torch.equal(layer.detach(), before) and found.skipped() == (1, 1) and found.scaler.get_scale() == scale / 2


@pytest.fixture
def large_scale(monkeypatch):
    """A scale at which gradients overflow for more steps than a run without a scaler may skip."""
    monkeypatch.setattr(optimizer, "FIRST_SCALE", 2.0**40)


def smoke(folder, *words: object) -> int:
    known = ("--device", "cpu", "--samples", 512, "--batch", 16, "--epochs", 2, "--output", folder, "--fp16")
    return train_smoke.main([str(word) for word in (*known, *words)])


def test_a_scaler_that_looks_for_its_scale_ends_no_run_and_is_resumed_with_the_same_bits(
    tmp_path, large_scale, monkeypatch, capfd
):
    assert smoke(tmp_path / "whole", "--lr", 0.01) in (0, 3)
    output = capfd.readouterr().out
    assert "loss_scale=" in output
    made = report(tmp_path / "whole")
    assert MAX_SKIPPED < made["skipped_steps"] < MAX_SKIPPED_FP16
    # Stopped while the scaler still lowers the scale: the next start goes on from there.
    real, taken = engine.Engine.step, []

    def stopped(self, lr):
        taken.append(lr)
        if len(taken) == 8:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, lr)

    monkeypatch.setattr(engine.Engine, "step", stopped)
    assert smoke(tmp_path / "parts", "--lr", 0.01) == 75
    monkeypatch.setattr(engine.Engine, "step", real)
    assert smoke(tmp_path / "parts", "--lr", 0.01) in (0, 3)
    parts = report(tmp_path / "parts")
    assert parts["attempts"] == 2 and parts["skipped_steps"] == made["skipped_steps"]
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


def test_weights_that_always_overflow_end_the_run(tmp_path, monkeypatch, capfd):
    real = Updater.step

    def step(self, lr):
        self.parameters[0].grad.fill_(float("nan"))
        return real(self, lr)

    monkeypatch.setattr(Updater, "step", step)
    assert smoke(tmp_path, "--epochs", 9) == 1
    assert "gradient" in capfd.readouterr().out


@pytest.mark.parametrize("engine_name", ["ddp", "fsdp"])
def test_two_ranks_learn_as_in_float32_and_repeat_bit_for_bit(tmp_path, engine_name):
    words = ("--engine", engine_name, "--schedule", "constant", "--warmup", 0, "--max-steps")
    for name in ("float32", "whole", "parts"):
        (tmp_path / name).mkdir()
    train(tmp_path / "float32", *words, 12, world=2)
    for name, lengths in (("whole", [12]), ("parts", [5, 12])):
        for steps in lengths:
            train(tmp_path / name, *words, steps, "--fp16", world=2)
    whole, exact = losses(tmp_path / "whole"), losses(tmp_path / "float32")
    assert whole == pytest.approx(exact, rel=5e-3) and whole != exact
    assert losses(tmp_path / "parts") == whole


def test_one_of_two_types_is_chosen():
    with pytest.raises(SystemExit) as error:
        train_smoke.make_parser().parse_args(["--fp16", "--bf16"])
    assert error.value.code == 2


def test_bf16_is_refused_on_a_gpu_without_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(process_group.DeviceError, match=r"Tesla T4.*--fp16"):
        process_group.require_bf16(torch.device("cuda", 0))
