"""A model that cannot work is refused before anything is loaded, with the file and what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpuworker.runtime.svg_plot import line_plot, ticks
from gpuworker.train import model, train_framework
from gpuworker.train.distributed import DistributedContext
from gpuworker.train.model import ModelSource
from gpuworker.train.model_files import ModelError, check_model
from gpuworker.train.throughput import format_duration


def safetensors(path: Path, size: int = 64) -> None:
    """The smallest file of the format: length of the header, header, tensors."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    for name in ("HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "")  # ModelSource sets them; they are removed when the test ends
    return make_model(tmp_path / "model")


def make_model(made: Path) -> Path:
    """Folder of a model with three weight files and a tokenizer, valid as far as names and lengths go."""
    made.mkdir(parents=True)
    (made / "config.json").write_text("{}")
    (made / "tokenizer.json").write_text("{}")
    names = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    for name in names:
        safetensors(made / name)
    index = {"weight_map": {f"layer.{number}": name for number, name in enumerate(names)}}
    (made / "model.safetensors.index.json").write_text(json.dumps(index))
    return made


def source(*flags: object) -> ModelSource:
    return ModelSource(train_framework.make_parser().parse_args([str(flag) for flag in flags]))


def cut(folder: Path) -> None:
    os.truncate(folder / "model-00003-of-00003.safetensors", 100)


def older_format(folder: Path) -> None:
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    (folder / "pytorch_model.bin").touch()


BROKEN_MODELS = {
    "no folder": (lambda folder: folder.rename(folder.parent / "x"), ("no such folder", "volume mounted?")),
    "no config": (lambda folder: (folder / "config.json").unlink(), ("no config.json",)),
    "config cut": (lambda folder: (folder / "config.json").write_text("{"), ("config.json", "not JSON")),
    "config no object": (lambda folder: (folder / "config.json").write_text("[]"), ("config.json", "not an object")),
    "missing shard": (
        lambda folder: (folder / "model-00002-of-00003.safetensors").unlink(),
        ("1 of 3 weight files", "model-00002-of-00003.safetensors"),
    ),
    "cut shard": (cut, ("model-00003-of-00003.safetensors", "truncated", "100 bytes of ")),
    "cut in its header": (
        lambda folder: os.truncate(folder / "model-00001-of-00003.safetensors", 20),
        ("model-00001-of-00003.safetensors", "truncated", "20 bytes", "header"),
    ),
    "no safetensors": (
        lambda folder: (folder / "model-00001-of-00003.safetensors").write_text("<html>Not found</html>" * 9),
        ("model-00001-of-00003.safetensors", "truncated"),
    ),
    "broken index": (
        lambda folder: (folder / "model.safetensors.index.json").write_text("{"),
        ("model.safetensors.index.json", "not a list of weights"),
    ),
    "older weights": (older_format, ("pytorch_model.bin", "convert it to safetensors")),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), ("no tokenizer", "tokenizer.json")),
}


def test_a_complete_model_is_accepted(folder):
    check_model(folder)
    assert source("--model-local-dir", folder).offline
    assert source("--model", folder).folder == folder


@pytest.mark.parametrize("damage, facts", BROKEN_MODELS.values(), ids=BROKEN_MODELS)
def test_a_broken_model_is_refused_before_it_is_loaded(folder, damage, facts):
    damage(folder)
    with pytest.raises(ModelError) as error:
        source("--model-local-dir", folder)
    text = str(error.value)
    assert str(folder) in text and all(fact in text for fact in facts), text


def test_a_broken_model_ends_the_program_with_2_before_it_joins_a_process_group(folder, capfd, monkeypatch):
    """RANK is set, and no other rank exists."""
    (folder / "model-00002-of-00003.safetensors").unlink()
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert train_framework.main(["--model-local-dir", str(folder), "--data", "x.jsonl"]) == 2
    output = capfd.readouterr().out
    assert output.count("\n") == 1 and "[FATAL]" in output and "model-00002-of-00003.safetensors" in output


def test_the_flags_must_name_exactly_one_source_of_the_model(folder):
    with pytest.raises(ModelError, match=r"--from-scratch .*--model "):
        source("--model", "gpt2", "--from-scratch", "gpt2-tiny")
    with pytest.raises(ModelError, match="--model-local-dir DIR"):
        source()


@pytest.mark.parametrize("is_local_rank_0, is_rank_0", [(True, True), (True, False), (False, False)])
def test_one_process_per_node_downloads_and_only_rank_0_gets_weights(folder, monkeypatch, is_local_rank_0, is_rank_0):
    """Records the calls of the hub's client; nothing is downloaded."""
    calls = []

    def snapshot_download(name, allow_patterns, local_files_only):
        calls.append((name, "*.safetensors" in allow_patterns, local_files_only))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    monkeypatch.setattr(DistributedContext, "is_local_rank_0", is_local_rank_0)
    monkeypatch.setattr(DistributedContext, "is_rank_0", is_rank_0)
    found = source("--model", "some/model")
    found.fetch(DistributedContext())
    downloads = [(name, weights) for name, weights, offline in calls if not offline]
    assert downloads == ([("some/model", is_rank_0)] if is_local_rank_0 else [])
    assert found.folder == found.tokenizer == folder


def test_a_gated_model_is_explained_with_the_token_variable(folder, monkeypatch):
    def snapshot_download(*_, **__):
        raise OSError("401 Client Error. Cannot access gated repo.\nMore lines.")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(ModelError, match=r"model a/b: OSError: 401 Client Error.*HF_TOKEN"):
        model.download("a/b", False, True)


def test_the_byte_tokenizer_encodes_and_decodes_any_text():
    tokenizer = model.byte_tokenizer()
    text = "Grüße, 世界!\n\t<|end"
    numbers = tokenizer(text).input_ids
    assert len(numbers) == len(text.encode()) and tokenizer.decode(numbers) == text
    assert len(tokenizer) == 257 and tokenizer.eos_token_id == 0


@pytest.mark.parametrize("low, high", [(0, 1), (2.31, 2.32), (0.001, 900), (5, 5), (0, 0), (-3, 7)])
def test_ticks_are_round_and_enclose_the_values(low, high):
    found = ticks(low, high)
    assert found[0] <= low and found[-1] >= high - 1e-6 and 2 <= len(found) <= 9, found


def test_a_plot_omits_values_that_are_not_finite_and_escapes_names():
    assert "no points" in line_plot({"training": []}, "step", "loss")
    drawn = line_plot({"a<b": [(1, float("nan")), (2, 3.0), (3, 2.0)]}, "step", "loss")
    assert "nan" not in drawn and "a&lt;b" in drawn
    assert drawn.count("<circle") == 2


def test_durations_have_a_short_form():
    assert [format_duration(seconds) for seconds in (4.4, 59.6, 200, 3900)] == ["4s", "1m00s", "3m20s", "1h05m"]
