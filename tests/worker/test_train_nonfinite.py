"""Gradients, losses and weights that are not finite never reach a checkpoint that a run resumes from."""

from __future__ import annotations

import json

import pytest
import torch

from gpuworker.train import train_smoke
from gpuworker.train.optimizer import MAX_SKIPPED, Updater
from tests.helpers.train_worlds import SMOKE, Ranks, checkpoints, report, train


def weights_are_finite(folder) -> bool:
    state = torch.load(folder / "rank-0" / "model.pt", weights_only=True)
    return all(bool(tensor.isfinite().all()) for tensor in state.values())


@pytest.mark.parametrize("world", [0, 2])
@pytest.mark.parametrize("lr", ["1e38", "1e30"])
def test_a_run_that_diverged_continues_from_the_last_good_state_as_its_error_says(tmp_path, lr, world):
    train(tmp_path, "--epochs", 1, "--save-every", 5, "--keep", 9, "--schedule", "constant", module=SMOKE, world=world)
    ranks = Ranks(
        SMOKE, ("--device", "cpu", "--output", tmp_path, "--epochs", 2, "--lr", lr, "--save-every", 1, "--keep", 9),
        world, tmp_path,
    )  # fmt: skip
    assert 1 in ranks.wait() and "[FATAL]" in ranks.output and "--lr" in ranks.output, ranks.all_output()
    for name in checkpoints(tmp_path):
        assert weights_are_finite(tmp_path / "run" / name), name
    ranks = train(tmp_path, "--epochs", 2, "--keep", 9, module=SMOKE, world=world)
    assert "resumed=epoch-000" in ranks.output
    assert all(entry["loss"] < 100 for entry in report(tmp_path)["history"])


def updater(clip: float) -> Updater:
    layer = torch.nn.Parameter(torch.ones(3, 3))
    return Updater([layer], lr=0.1, decay=0.0, clip=clip)


@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_neither_weights_nor_optimizer_state(clip, bad):
    found = updater(clip)
    (layer,) = found.parameters
    layer.grad = torch.ones(3, 3)
    found.step(0.1)
    before = [layer.detach().clone(), *(each.clone() for each in found.optimizer.state[layer].values())]
    layer.grad = torch.full((3, 3), bad)
    found.step(0.1)
    after = [layer.detach(), *found.optimizer.state[layer].values()]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert found.skipped() == (1, 1)
    layer.grad = torch.ones(3, 3)
    found.step(0.1)
    assert not torch.equal(before[0], layer.detach()) and found.skipped() == (1, 0)


def test_a_few_skipped_steps_are_logged_and_many_in_a_row_end_the_run(tmp_path, monkeypatch, capfd):
    def with_faults(steps):
        real, taken = Updater.step, []

        def step(self, lr):
            taken.append(lr)
            if len(taken) in steps:
                self.parameters[0].grad.fill_(float("nan"))
            return real(self, lr)

        monkeypatch.setattr(Updater, "step", step)
        return train_smoke.main(["--device", "cpu", "--output", str(tmp_path), "--resume", "never"])

    assert with_faults({5, 9}) == 0
    output = capfd.readouterr().out
    assert "skipped=1" in output and "skipped=2" in output
    assert json.loads((tmp_path / "run" / "report.json").read_text())["skipped_steps"] == 2
    monkeypatch.undo()
    assert with_faults(range(10, 11 + MAX_SKIPPED)) == 1
    assert "gradient" in capfd.readouterr().out
