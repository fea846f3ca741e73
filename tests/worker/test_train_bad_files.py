"""Files that cannot be used end a training program with exit code 2 and one line that names them."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from gpuworker.train import token_file, tokenize_data, train_framework
from gpuworker.train.data_files import DataError
from gpuworker.train.distributed import DistributedContext
from gpuworker.train.language_model import data_problem


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A model of one small layer, with a tokenizer of 257 tokens."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from gpuworker.train.model import byte_tokenizer

    folder = tmp_path_factory.mktemp("model")
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 64}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", vocab_size=257, **sizes)).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tmp_path, model, monkeypatch) -> Path:
    for name in ("HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "")  # ModelSource sets them; they are removed when the test ends
    monkeypatch.setattr("logging.raiseExceptions", False)  # transformers writes to an earlier test's output
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "data.jsonl").write_text('{"text": "some text of a few bytes"}\n' * 20)
    shutil.copytree(model, tmp_path / "model")
    return tmp_path


def run(capfd, folder: Path, *words: object, program=train_framework) -> tuple[int, str]:
    flags = ("--model-local-dir", folder / "model", "--data", folder / "data.jsonl", "--cache", folder / "cache",
             "--device", "cpu", "--seq-len", 16, "--batch", 2, "--max-steps", 1)  # fmt: skip
    code = program.main([str(word) for word in (*flags, *words)])
    return code, "".join(capfd.readouterr())


def assert_refused(capfd, folder: Path, *facts: str, program=train_framework) -> None:
    code, output = run(capfd, folder, program=program)
    assert code == 2 and output.count("[FATAL]") == 1 and "Traceback" not in output, output
    (line,) = [each for each in output.splitlines() if "[FATAL]" in each]
    assert all(fact in line for fact in facts), line


def rewrite(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def resize(folder: Path, name: str, rows: int) -> None:
    from safetensors.torch import load_file, save_file

    path = folder / "model" / "model.safetensors"
    save_file({**load_file(path), name: torch.zeros(rows, 8)}, path, metadata={"format": "pt"})


def test_the_model_is_good(capfd, folder):
    assert run(capfd, folder)[0] == 0


@pytest.mark.parametrize("program", [train_framework, tokenize_data])
def test_data_with_tokens_that_the_model_does_not_know(capfd, folder, program):
    rewrite(folder / "model" / "config.json", vocab_size=60)
    resize(folder, "transformer.wte.weight", 60)
    assert_refused(capfd, folder, "60 tokens", str(folder / "model"), "the token 221", program=program)


def test_a_tokenizer_may_have_tokens_that_no_text_contains(capfd, folder):
    rewrite(folder / "model" / "config.json", vocab_size=240)
    resize(folder, "transformer.wte.weight", 240)
    assert run(capfd, folder)[0] == 0


def test_a_tensor_of_another_shape(capfd, folder):
    resize(folder, "transformer.wpe.weight", 32)
    assert_refused(capfd, folder, str(folder / "model"), "wpe.weight is (32, 8), not (64, 8)")


@pytest.mark.parametrize(
    ("name", "text", "fact"),
    [
        ("config.json", "{", "config.json: not JSON"),
        ("config.json", "[]", "config.json: not an object"),
        ("config.json", "{}", "model_type"),
        ("config.json", '{"model_type": "no-such-type"}', "no-such-type"),
        ("tokenizer.json", "{", "cannot be loaded"),
        ("tokenizer_config.json", "{", "cannot be loaded"),
    ],
)
def test_a_description_that_cannot_be_read(capfd, folder, name, text, fact):
    (folder / "model" / name).write_text(text)
    assert_refused(capfd, folder, str(folder / "model"), fact)


@pytest.mark.parametrize("name", ["data.jsonl", "model/config.json", "model/model.safetensors"])
def test_a_file_of_another_user(capfd, folder, name, monkeypatch):
    whole = Path.open

    def refuse(self, *rest, **options):
        if self == folder / name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return whole(self, *rest, **options)

    monkeypatch.setattr(Path, "open", refuse)
    assert_refused(capfd, folder, str(folder / name), f"user {os.getuid()} cannot read")


def test_a_cache_on_a_full_volume(capfd, folder, monkeypatch):
    def fill(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(token_file, "write_part", fill)
    assert_refused(capfd, folder, f"--cache {folder / 'cache'}", "No space left on device")


def test_other_ranks_end_with_the_same_exit_code(monkeypatch):
    """Of a rank whose disk is full they get the error as one of usage."""
    sent = []
    monkeypatch.setattr(DistributedContext, "all_gather_object", lambda self, value: sent.append(value) or [value])
    context = DistributedContext((DataError,)).translating(lambda error: data_problem(error, Path("/tokens")))
    with pytest.raises(DataError, match="--cache /tokens"), context.raise_on_all_ranks():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    ((text, usage),) = sent
    assert usage and "--cache /tokens" in text


def test_a_fault_of_the_disk_is_no_fault_of_the_files(capfd, folder, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(token_file, "write_part", fail)
    with pytest.raises(OSError, match="Input/output error"):
        run(capfd, folder)
