"""A resumed run with other settings: what changed is logged, and the report contains what was run."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from gpuworker.train import train_smoke
from gpuworker.train.run_checkpoints import describe_difference
from tests.helpers.train_worlds import LM, Ranks, report, train

FEW = ("--epochs", 1, "--seq-len", 32, "--batch", 16)


def smoke(folder: Path, *words: object) -> int:
    return train_smoke.main([str(word) for word in ("--device", "cpu", "--output", folder, *words)])


def test_the_report_of_a_run_that_is_done_has_the_settings_that_trained_it(tmp_path, capfd):
    assert smoke(tmp_path, "--lr", 0.003) == 0
    before = report(tmp_path)["parameters"]
    assert smoke(tmp_path, "--lr", 1e-5, "--batch", 64) == 0
    after = report(tmp_path)["parameters"]
    assert (after["lr"], after["batch"], after["samples_per_step"]) == (0.003, 256, before["samples_per_step"])
    assert "nothing_to_do=" in capfd.readouterr().out


def test_changed_settings_are_logged_and_reported_from_their_step_on(tmp_path, capfd):
    assert smoke(tmp_path, "--epochs", 1) in (0, 3)
    capfd.readouterr()
    assert smoke(tmp_path, "--epochs", 2, "--lr", 1e-3, "--clip", 0.5) in (0, 3)
    (line,) = [each for each in capfd.readouterr().out.splitlines() if "changed=" in each]
    for words in ("lr was 0.003, is 0.001", "clip was 1.0, is 0.5", "epochs was 1, is 2"):
        assert words in line
    settings = report(tmp_path)["settings"]
    assert [(each["from_step"], each["lr"]) for each in settings] == [(1, 0.003), (17, 0.001)]


def test_an_unchanged_resume_logs_no_change(tmp_path, capfd):
    assert smoke(tmp_path) == 0
    shutil.rmtree(tmp_path / "run" / "epoch-0002")
    assert smoke(tmp_path) == 0
    assert "changed=" not in capfd.readouterr().out and len(report(tmp_path)["settings"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags, words",
    [(("--lora-r", 64), "lora_r was 16, is 64"), (("--lora-alpha", 8), "lora_alpha"), (("base",), "base_model")],
)
def test_other_adapters_or_another_base_model_are_refused(tmp_path, flags, words):
    base = tmp_path / "base"
    train(tmp_path, *FEW)
    shutil.copytree(tmp_path / "run" / "latest" / "rank-0", base)
    lora = ("--model-local-dir", base, "--seq-len", 32, "--batch", 16, "--device", "cpu", "--lora", "--run", "lora")
    lora = (*lora, "--output", tmp_path)
    first = Ranks(LM, lora, 0, tmp_path)
    assert first.wait() == [0], first.output
    if flags == ("base",):
        train(tmp_path, *FEW, "--seed", 7, "--run", "other")
        shutil.copy(tmp_path / "other" / "latest" / "rank-0" / "model.safetensors", base / "model.safetensors")
        flags = ()
    again = Ranks(LM, (*lora, *flags), 0, tmp_path)
    assert again.wait() == [2] and words in again.output, again.output


@pytest.mark.parametrize("change", ["more", "other"])
def test_other_data_are_refused_with_words_and_numbers_of_tokens(tmp_path, change):
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "some words"}\n' * 40)
    words = ("--data", data, "--seq-len", 32, "--max-steps", 1)
    train(tmp_path, *words)
    line = '{"text": "some words"}\n' if change == "more" else '{"text": "some ducks"}\n'
    data.write_text('{"text": "some words"}\n' * 39 + line * (2 if change == "more" else 1))
    (fatal,) = [each for each in train(tmp_path, *words, code=2).output.splitlines() if "[FATAL]" in each]
    if change == "more":
        assert "data was 440 tokens" in fatal and "is 451 tokens" in fatal
    else:
        assert fatal.count("440 tokens") == 2 and fatal.count("checksum") == 2
    assert not re.search(r"\[\d", fatal)


@pytest.mark.slow
def test_other_validation_data_are_logged_and_begin_a_best_of_their_own(tmp_path):
    data, val = tmp_path / "data.jsonl", tmp_path / "val.jsonl"
    data.write_text('{"text": "some words to learn"}\n' * 40)
    val.write_text('{"text": "some words to learn"}\n' * 4)
    words = ("--data", data, "--seq-len", 32, "--lr", 3e-3, "--epochs")
    train(tmp_path, *words, 2)
    easy = report(tmp_path)["evaluations"][-1]["loss"]
    val.write_text('{"text": "QUITE ANOTHER TEXT 1234567890"}\n' * 4)
    output = train(tmp_path, *words, 3).output
    assert "changed=" in output and "validation was 80 tokens" in output
    assert "epoch=3 of=3" in output and "best=true" in output.split("epoch=3 of=3")[1].splitlines()[0]
    assert report(tmp_path)["evaluations"][-1]["loss"] > easy
    assert (tmp_path / "run" / "best").resolve().name == "epoch-0003"


@pytest.mark.slow
def test_another_dropout_of_adapters_is_used_and_logged(tmp_path):
    words = (*FEW, "--lora", "--max-steps")
    train(tmp_path, *words, 1, "--lora-dropout", 0.25)
    output = train(tmp_path, *words, 2, "--lora-dropout", 0.5).output
    assert "lora_dropout was 0.25, is 0.5" in output
    assert [each["lora_dropout"] for each in report(tmp_path)["settings"]] == [0.25, 0.5]
    saved = json.loads((tmp_path / "run" / "latest" / "rank-0" / "adapter_config.json").read_text())
    assert saved["lora_dropout"] == 0.5


@pytest.mark.parametrize("words", [("--warmup", 1000), ("--warmup", 3, "--max-steps", 3)])
def test_a_warmup_that_is_not_shorter_than_the_run_is_logged(tmp_path, capfd, words):
    assert smoke(tmp_path, "--max-steps", 5, *words) in (0, 3)
    assert f"--warmup {words[1]} is not shorter than the run" in capfd.readouterr().out
    assert smoke(tmp_path, "--max-steps", 5, "--warmup", 2, "--run", "b") in (0, 3)
    assert "--warmup" not in capfd.readouterr().out


def test_a_limit_below_the_step_of_the_run_is_named(tmp_path, capfd):
    assert smoke(tmp_path, "--max-steps", 5) in (0, 3)
    capfd.readouterr()
    assert smoke(tmp_path, "--max-steps", 3) in (0, 3)
    (line,) = [each for each in capfd.readouterr().out.splitlines() if "nothing_to_do=" in each]
    assert "--max-steps 3 is below step 5" in line


def test_every_user_can_read_the_files_of_a_run(tmp_path):
    before = os.umask(0o077)
    try:
        assert smoke(tmp_path / "out", "--max-steps", 2, "--report-json", tmp_path / "own.json") in (0, 3)
    finally:
        os.umask(before)
    paths = [each for each in tmp_path.rglob("*") if not each.is_symlink() and each.name != ".run.lock"]
    assert (tmp_path / "out" / "run" / "report.json") not in paths and len(paths) > 6
    modes = {each.name: oct(each.stat().st_mode & 0o777) for each in paths}
    assert modes == {each.name: "0o755" if each.is_dir() else "0o644" for each in paths}


def test_a_difference_of_lists_names_the_members_that_differ():
    before = {"base_model": ["a: 1 bytes", "b: 2 bytes"], "seed": 1, "old": 1}
    now = {"base_model": ["a: 1 bytes", "b: 3 bytes", "c: 1 bytes"], "seed": 1, "new": 2}
    assert describe_difference(before, now) == "base_model was b: 2 bytes, is b: 3 bytes, c: 1 bytes"
    assert describe_difference({"base_model": ["a", "b"]}, {"base_model": ["a"]}) == "base_model was b, is without it"
    assert (
        describe_difference({"betas": [0.9, 0.99]}, {"betas": [0.99, 0.9]}) == "betas was [0.9, 0.99], is [0.99, 0.9]"
    )


@pytest.mark.parametrize(
    "words",
    ["--batch 9999999999999999999", "--epochs 0", "--lr nan", "--lr -1", "--lr inf", "--warmup -5", "--wd -1"]
    + ["--clip nan", "--clip -1", "--upload-wait -1"]
    + ["--betas 0.9", "--betas 0.9,1.5", "--betas a,b", "--max-steps 0", "--min-lr -1"],
)
def test_a_number_that_cannot_work_is_a_usage_error(words):
    with pytest.raises(SystemExit) as error:
        train_smoke.make_parser().parse_args(words.split())
    assert error.value.code == 2


def test_a_dropout_of_more_than_everything_is_a_usage_error(capsys):
    from gpuworker.train import train_framework

    with pytest.raises(SystemExit):
        train_framework.make_parser().parse_args(["--lora-dropout", "2"])
    assert "--lora-dropout" in capsys.readouterr().out


def test_the_settings_of_the_report_are_json(tmp_path):
    assert smoke(tmp_path, "--epochs", 1) in (0, 3)
    assert json.loads(json.dumps(report(tmp_path)["settings"]))[0]["from_step"] == 1
