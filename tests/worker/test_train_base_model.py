"""The model below a run: known by its configuration and weights, complete, and the same for every engine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gpuworker.train import model
from gpuworker.train.checkpoint_files import MANIFEST, STATE, sha256_of
from tests.helpers.train_models import edit_config, edit_weights, make_model
from tests.helpers.train_worlds import LM, Ranks, losses, report

LORA = ("--lora", "--target-modules", "q_proj,v_proj")
FEW = ("--seq-len", 32, "--batch", 8, "--lr", 1e-3, "--log-every", 1, "--device", "cpu", "--trackers", "none")


def start(folder: Path, *words: object, code: int = 0, world: int = 0) -> str:
    """Output of rank 0 of a run in `folder`, which must end with this code."""
    ranks = Ranks(LM, (*FEW, "--output", folder, *words), world, folder)
    assert set(ranks.wait()) == {code}, ranks.all_output()
    assert code != 2 or "Traceback" not in ranks.output, ranks.output
    return ranks.output


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "rank-0")


OTHERS = {
    "a layer less": (lambda folder: make_model(folder, num_hidden_layers=1), "num_hidden_layers=2, is"),
    "other weights": (lambda folder: make_model(folder, seed=2), "base_model was"),
    "another eps": (lambda folder: edit_config(folder, rms_norm_eps=0.5), "rms_norm_eps=0.5"),
}


@pytest.fixture(scope="module", params=["ddp", "fsdp", "lora"])
def trained(request, base, tmp_path_factory) -> tuple[Path, tuple]:
    """A run of two steps, and its flags without the model."""
    flags = LORA if request.param == "lora" else ("--engine", request.param)
    folder = tmp_path_factory.mktemp(request.param)
    start(folder, "--model-local-dir", base, *flags, "--max-steps", 2)
    return folder, flags


@pytest.mark.slow
@pytest.mark.parametrize("change, words", OTHERS.values(), ids=OTHERS)
def test_a_run_is_not_resumed_with_another_model_in_a_folder_of_the_same_name(trained, base, tmp_path, change, words):
    other = shutil.copytree(base, tmp_path / base.name)
    change(other)
    folder, flags = trained
    output = start(folder, "--model-local-dir", other, *flags, "--max-steps", 4, code=2)
    assert "another training" in output and words in output


@pytest.mark.slow
def test_a_run_is_resumed_after_its_model_has_moved(trained, base, tmp_path):
    moved = shutil.copytree(base, tmp_path / "another-name")
    edit_config(moved, _name_or_path="x", transformers_version="0.0")
    folder, flags = trained
    assert "resumed=epoch-" in start(folder, "--model-local-dir", moved, *flags, "--max-steps", 3)


def as_of_an_earlier_version(folder: Path) -> None:
    """Turn the run's newest checkpoint into one that knows its model by name only."""
    checkpoint = (folder / "run" / "latest").resolve()
    path = checkpoint / "rank-0" / STATE
    state = json.loads(path.read_text())
    del state["identity"]["config"], state["identity"]["base_model"]
    path.write_text(json.dumps(state))
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    manifest["files"][f"rank-0/{STATE}"] = {"size": path.stat().st_size, "sha256": sha256_of(path)}
    (checkpoint / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_an_earlier_checkpoint_with_other_tensors_is_refused(base, tmp_path, engine, layers):
    words = ("--model-local-dir", base, "--engine", engine, "--max-steps")
    start(tmp_path, *words, 2)
    as_of_an_earlier_version(tmp_path)
    other = make_model(tmp_path / base.name, num_hidden_layers=layers)
    named = "model.layers.1." if layers == 1 else "model.layers.2."
    assert named in start(tmp_path, *words[:1], other, *words[2:], 4, code=2)
    assert "resumed=epoch-" in start(tmp_path, *words, 3)


def test_a_model_is_known_by_its_configuration_without_names_and_versions(base, tmp_path):
    other = shutil.copytree(base, tmp_path / "other")
    edit_config(other, _name_or_path="x", transformers_version="0.0", dtype="bfloat16")
    assert model.config_facts(other) == model.config_facts(base)
    edit_config(other, rope_theta=5)
    assert set(model.config_facts(other)) - set(model.config_facts(base)) == {"rope_theta=5"}


def prefixed(tensors: dict) -> dict:
    return {f"wrapped.{name}": tensor for name, tensor in tensors.items()}


def without_norm(tensors: dict) -> None:
    del tensors["model.norm.weight"]


def with_nan(tensors: dict) -> None:
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = float("nan")


UNFIT = {
    "a layer more": (lambda folder: edit_config(folder, num_hidden_layers=3), "model.layers.2."),
    "a layer less": (lambda folder: edit_config(folder, num_hidden_layers=1), "model.layers.1."),
    "other names": (lambda folder: edit_weights(folder, prefixed), "wrapped."),
    "a tensor is missing": (lambda folder: edit_weights(folder, without_norm), "model.norm.weight"),
    "an untied output is missing": (lambda folder: edit_config(folder, tie_word_embeddings=False), "lm_head.weight"),
    "another width": (lambda folder: edit_config(folder, intermediate_size=96), "mlp."),
    "not a number": (lambda folder: edit_weights(folder, with_nan), "model.layers.1.mlp.up_proj.weight"),
}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
@pytest.mark.parametrize("change, words", UNFIT.values(), ids=UNFIT)
def test_a_model_with_tensors_that_do_not_fit_is_refused(base, tmp_path, engine, change, words):
    folder = shutil.copytree(base, tmp_path / "model")
    change(folder)
    output = start(tmp_path, "--model-local-dir", folder, "--engine", engine, "--max-steps", 1, code=2)
    (fatal,) = [line for line in output.splitlines() if "[FATAL]" in line]
    assert words in fatal and str(folder) in fatal


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["gpt2-tiny", "llama-tiny"])
def test_random_weights_are_the_same_for_every_engine_and_number_of_ranks(tmp_path, preset):
    found = {}
    for engine, world in (("ddp", 0), ("ddp", 2), ("fsdp", 0), ("fsdp", 2)):
        folder = tmp_path / f"{engine}-{world}"
        folder.mkdir()
        words = ("--from-scratch", preset, "--engine", engine, "--batch", 8 // max(1, world), "--max-steps", 3)
        start(folder, *words, world=world)
        found[engine, world] = [*losses(folder), report(folder)["evaluations"][-1]["loss"]]
    for each in found.values():
        assert each == pytest.approx(found["ddp", 0], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, targets", [("llama-tiny", "q_proj,lm_head"), ("llama-tiny", "embed_tokens"), ("gpt2-tiny", "c_attn,wte")]
)
def test_adapters_of_weights_that_two_layers_share_are_refused(tmp_path, kind, targets):
    output = start(tmp_path, "--from-scratch", kind, "--lora", "--target-modules", targets, code=2)
    assert "[STEP]" not in output and targets.split(",")[-1] in output and "share" in output


@pytest.mark.slow
def test_adapters_of_an_output_with_weights_of_its_own_are_trained(tmp_path):
    untied = make_model(tmp_path / "untied", tie_word_embeddings=False)
    words = ("--model-local-dir", untied, "--lora", "--target-modules", "q_proj,lm_head", "--max-steps", 1)
    assert "[STEP]" in start(tmp_path, *words)


@pytest.mark.slow
def test_a_name_that_no_layer_has_is_refused_beside_one_that_a_layer_has(tmp_path):
    output = start(tmp_path, "--from-scratch", "llama-tiny", "--lora", "--target-modules", "q_proj,v_porj", code=2)
    assert "v_porj" in output and "[STEP]" not in output
