"""A checkpoint of adapters becomes one model, which computes what base model and adapters compute together."""

from __future__ import annotations

import shutil

import pytest
import torch

from gpuworker.train import export, model_files
from gpuworker.train.held_folder import LOCK, place_of
from tests.helpers.train_models import make_model
from tests.helpers.train_worlds import LM, Ranks, train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # peft calls what transformers is going to remove
]
SHORT = ("--epochs", 1, "--seq-len", 32, "--batch", 16)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with the model `base` in bfloat16, and a run `lora` that trained adapters on it."""
    import transformers

    folder = tmp_path_factory.mktemp("lora")
    train(folder, *SHORT)
    shutil.copytree(folder / "run" / "latest" / "rank-0", folder / "base")
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.bfloat16)
    whole.save_pretrained(folder / "base")
    flags = ("--model-local-dir", folder / "base", *SHORT[2:], "--device", "cpu", "--lora", "--lr", 0.03)
    ranks = Ranks(LM, (*flags, "--run", "lora", "--output", folder), 0, folder)
    assert ranks.wait() == [0], ranks.output
    return folder


def logits(model) -> torch.Tensor:
    return model.eval()(input_ids=torch.arange(3, 35)[None]).logits


def test_adapters_and_base_model_become_one_model(trained, tmp_path):
    import peft
    import transformers

    checkpoint, load = trained / "lora" / "latest", transformers.AutoModelForCausalLM.from_pretrained
    assert export.main([str(checkpoint), str(tmp_path / "merged")]) == 0
    merged, base = load(tmp_path / "merged", dtype="auto"), load(trained / "base", dtype=torch.float32)
    assert merged.dtype == torch.bfloat16
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "merged")("Shall").input_ids
    assert not {"optimizer.pt", "trainer.json", "adapter_config.json"} & {
        e.name for e in (tmp_path / "merged").iterdir()
    }
    before = logits(base).clone()
    expected = logits(peft.PeftModel.from_pretrained(base, checkpoint / "rank-0"))
    found = logits(merged).float()
    assert (before - expected).abs().max() > 0.1, "the adapters change the model"
    assert (found - expected).abs().max() < 0.2 * (before - expected).abs().max()


def test_adapters_are_merged_with_their_own_base_model_only(trained, tmp_path, capsys):
    checkpoint, moved = str(trained / "lora" / "latest"), tmp_path / "moved"
    (trained / "base").rename(moved)
    try:
        assert export.main([checkpoint, str(tmp_path / "a")]) == 2 and "--base" in capsys.readouterr().err
        assert export.main([checkpoint, str(tmp_path / "b"), "--base", str(moved)]) == 0
        assert export.main([checkpoint, str(tmp_path / "b"), "--base", str(moved)]) == 2, "nothing is overwritten"
        other = tmp_path / "other"
        shutil.copytree(trained / "run" / "latest" / "rank-0", other)
        capsys.readouterr()
        assert export.main([checkpoint, str(tmp_path / "c"), "--base", str(other)]) == 2
        assert "is not the adapters' base model" in capsys.readouterr().err and not (tmp_path / "c").exists()
    finally:
        moved.rename(trained / "base")


@pytest.mark.filterwarnings("ignore::UserWarning")  # of peft, about these targets
def test_adapters_of_weights_that_two_layers_share_are_not_merged(tmp_path):
    """The start of a run refuses them; an earlier version did not."""
    import peft
    import transformers

    base, adapters = make_model(tmp_path / "base"), tmp_path / "adapters"
    config = peft.LoraConfig(target_modules=["q_proj", "lm_head"], task_type="CAUSAL_LM")
    peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(adapters)
    with pytest.raises(model_files.ModelError, match="lm_head"):
        export.merge(adapters, base, model_files.base_fingerprints(base), tmp_path / "merged", 1 << 30)
    assert not (tmp_path / "merged").exists()


def test_a_checkpoint_that_can_be_loaded_as_it_is_needs_no_export(trained, tmp_path, capsys):
    assert export.main([str(trained / "run" / "latest"), str(tmp_path / "a")]) == 2
    assert "rank-0" in capsys.readouterr().err


def test_what_is_no_checkpoint_is_named(trained, tmp_path, capsys):
    (tmp_path / "file").touch()
    for source, fact in (
        (tmp_path / "nope", "nope: no such folder"),
        (tmp_path / "file", "file: not a folder"),
        (trained / "run", f"such as {trained / 'run' / 'latest'}"),
        (trained / "run" / "latest" / "rank-0", f"name the whole, {trained / 'run' / 'latest'}"),
    ):
        assert export.main([str(source), str(tmp_path / "a")]) == 2
        assert fact in capsys.readouterr().err and not (tmp_path / "a").exists()


def test_an_export_that_is_killed_can_be_repeated(trained, tmp_path, monkeypatch):
    checkpoint, target = trained / "lora" / "latest", tmp_path / "merged"
    killed = tmp_path / ".partial-merged-killed"
    killed.mkdir()
    (killed / LOCK).write_text(place_of(killed))  # of an owner that has ended
    monkeypatch.setattr(export.shutil, "copy", lambda *_: pytest.fail("ends here", pytrace=False))  # after the weights
    with pytest.raises(pytest.fail.Exception, match="ends here"):
        export.export(checkpoint, target)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    export.export(checkpoint, target)
    assert [path.name for path in tmp_path.iterdir()] == ["merged"]


def test_no_model_is_exported_into_a_checkpoint(trained, capsys):
    checkpoint = trained / "lora" / "latest"
    assert export.main([str(checkpoint), str(checkpoint / "merged")]) == 2
    assert "must not be in a checkpoint" in capsys.readouterr().err and not (checkpoint / "merged").exists()


@pytest.mark.parametrize("named", ["lora/latest", "lora/latest/rank-0", "run/latest"])
def test_a_checkpoint_in_place_of_a_model_is_named(trained, named):
    with pytest.raises(model_files.ModelError, match=r"train\.export|run/latest/rank-0"):
        model_files.check_model(trained / named)
