"""A model that cannot work is refused before anything is loaded, with its file's name and what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpuworker.runtime.svg_plot import line_plot, ticks
from gpuworker.train import model, train_framework
from gpuworker.train.distributed import World
from gpuworker.train.model import ModelError, Source, check_model
from gpuworker.train.throughput import duration


def safetensors(path: Path, size: int = 64) -> None:
    """The smallest file of the format: length of the header, header, tensors."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A model of three weight files and a tokenizer, as far as names and lengths go."""
    for name in ("HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "")  # Source sets them; they go when the test ends
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text("{}")
    (made / "tokenizer.json").write_text("{}")
    names = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    for name in names:
        safetensors(made / name)
    index = {"weight_map": {f"layer.{number}": name for number, name in enumerate(names)}}
    (made / "model.safetensors.index.json").write_text(json.dumps(index))
    return made


def source(*flags: object) -> Source:
    return Source(train_framework.parser().parse_args([str(flag) for flag in flags]))


def cut(folder: Path) -> None:
    os.truncate(folder / "model-00003-of-00003.safetensors", 100)


def old_kind(folder: Path) -> None:
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    (folder / "pytorch_model.bin").touch()


BROKEN = {
    "no folder": (lambda folder: folder.rename(folder.parent / "x"), "no such folder; is the models volume mounted?"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    "missing shard": (
        lambda folder: (folder / "model-00002-of-00003.safetensors").unlink(),
        "1 of 3 weight files are missing: model-00002-of-00003.safetensors",
    ),
    "cut shard": (cut, "model-00003-of-00003.safetensors: is cut short: 100 bytes of "),
    "cut in its header": (
        lambda folder: os.truncate(folder / "model-00001-of-00003.safetensors", 20),
        "model-00001-of-00003.safetensors: is cut short: 20 bytes, and its header alone",
    ),
    "no safetensors": (
        lambda folder: (folder / "model-00001-of-00003.safetensors").write_text("<html>Not found</html>" * 9),
        "model-00001-of-00003.safetensors: is cut short",
    ),
    "broken index": (
        lambda folder: (folder / "model.safetensors.index.json").write_text("{"),
        "not a list of weights",
    ),
    "older weights": (old_kind, "pytorch_model.bin is of the older kind"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer: none of tokenizer.json"),
}


def test_a_whole_model_is_accepted(folder):
    check_model(folder)
    assert source("--model-local-dir", folder).offline
    assert source("--model", folder).folder == folder


@pytest.mark.parametrize("breaks, words", BROKEN.values(), ids=BROKEN)
def test_a_broken_model_is_refused_before_it_is_loaded(folder, breaks, words):
    breaks(folder)
    with pytest.raises(ModelError) as error:
        source("--model-local-dir", folder)
    assert words in str(error.value) and str(folder) in str(error.value)


def test_refused_before_a_gpu_or_another_rank_is_asked(folder, capfd, monkeypatch):
    """The whole program: exit code 2 and one line, without a process group (RANK is set, and nobody else is there)."""
    (folder / "model-00002-of-00003.safetensors").unlink()
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert train_framework.main(["--model-local-dir", str(folder), "--data", "x.jsonl"]) == 2
    said = capfd.readouterr().out
    assert said.count("\n") == 1 and "[FATAL]" in said and "model-00002-of-00003.safetensors" in said


def test_one_source_of_the_model(folder):
    with pytest.raises(ModelError, match="give one of them"):
        source("--model", "gpt2", "--from-scratch", "gpt2-tiny")
    with pytest.raises(ModelError, match="which model"):
        source()


@pytest.mark.parametrize("node_lead, lead", [(True, True), (True, False), (False, False)])
def test_a_node_downloads_once_and_only_rank_0_gets_weights(folder, monkeypatch, node_lead, lead):
    """The hub is not asked by this test: what is asked of its client is recorded."""
    asked = []

    def snapshot_download(name, allow_patterns, local_files_only):
        asked.append((name, "*.safetensors" in allow_patterns, local_files_only))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    world = World()
    monkeypatch.setattr(World, "node_lead", node_lead)
    monkeypatch.setattr(World, "lead", lead)
    found = source("--model", "some/model")
    found.fetch(world)
    downloads = [(name, weights) for name, weights, offline in asked if not offline]
    assert downloads == ([("some/model", lead)] if node_lead else [])
    assert found.folder == found.tokenizer == folder


def test_what_the_hub_refuses_is_explained(folder, monkeypatch):
    def snapshot_download(*_, **__):
        raise OSError("401 Client Error. Cannot access gated repo.\nMore lines.")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(ModelError, match=r"model a/b: OSError: 401 Client Error.*; accept its licence on the hub"):
        model.download("a/b", False, True)


def test_text_comes_back_from_bytes():
    tokenizer = model.byte_tokenizer()
    text = "Grüße, 世界!\n\t<|end"
    numbers = tokenizer(text).input_ids
    assert len(numbers) == len(text.encode()) and tokenizer.decode(numbers) == text
    assert len(tokenizer) == 257 and tokenizer.eos_token_id == 0


@pytest.mark.parametrize("low, high", [(0, 1), (2.31, 2.32), (0.001, 900), (5, 5), (0, 0), (-3, 7)])
def test_ticks_are_round_and_hold_the_values(low, high):
    found = ticks(low, high)
    assert found[0] <= low and found[-1] >= high - 1e-6 and 2 <= len(found) <= 9, found


def test_a_plot_shows_what_there_is():
    assert "no points" in line_plot({"training": []}, "step", "loss")
    drawn = line_plot({"a<b": [(1, float("nan")), (2, 3.0), (3, 2.0)]}, "step", "loss")
    assert "nan" not in drawn and "a&lt;b" in drawn
    assert drawn.count("<circle") == 2


def test_durations_are_short():
    assert [duration(seconds) for seconds in (4.4, 59.6, 200, 3900)] == ["4s", "1m00s", "3m20s", "1h05m"]
