"""train_framework.py: what it learns, saves and resumes, and what it refuses."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuworker.train.callbacks.durable import newest
from hack.paths import REPO
from tests.helpers.processes import environment, ran
from tests.helpers.train_runs import (
    LM,
    Ranks,
    checkpoints,
    hashes,
    language_model,
    on_small_disk,
    text_file,
    write,
)

SLOW = str(REPO / "tests" / "launch_programs" / "slow_language_model.py")
OFTEN = ("--set", "logging_steps=1")


def run(folder: Path, *arguments: object, code: int = 0, module: str = LM, **more: object) -> Ranks:
    return Ranks(module, folder, *arguments, *OFTEN, **more).end(code)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> tuple[object, ...]:
    return language_model(tmp_path_factory.mktemp("model"))


def evaluated(folder: Path) -> tuple[object, ...]:
    return "--val", text_file(folder, 37, seed=2)


IMPOSSIBLE = """\
--batch 0
--epochs nan
--lr -1
--seq-len 1
--output s3://bucket
--lora -2
--run-id ../x
--seed -1
--model-local-dir /no/such
--set output_dir=/tmp
--set gradient_accumulation_steps=-1
--set no_such=1
--set bf16
--set seed=x
--set fsdp=full_shard
"""


@pytest.mark.parametrize("flags", IMPOSSIBLE.splitlines())
def test_what_cannot_be_trained_ends_with_2(tmp_path, model, flags):
    done = run(tmp_path, *model, *flags.split(), code=2)
    assert "error:" in done.output
    assert not (tmp_path / "run").exists() or not checkpoints(tmp_path)


def test_a_batch_that_the_ranks_cannot_share_ends_with_2(tmp_path, model):
    assert 2 in Ranks(LM, tmp_path, *model, "--batch", 7, world=2).wait()


@pytest.mark.parametrize("setting", ["save_total_limit=2", "save_only_model=true"])
def test_a_setting_that_would_lose_checkpoints_is_refused(tmp_path, model, setting):
    assert setting.split("=")[0] in run(tmp_path, *model, "--set", setting, code=1).output


def test_each_epoch_has_a_loss_and_the_best_is_kept(tmp_path, model):
    done = run(tmp_path, *model, *evaluated(tmp_path), "--epochs", 3, "--keep", 1)
    losses = [*map(float, done.facts("EPOCH", "val_loss"))]
    assert len(losses) == 3 and losses[2] < losses[0]
    best = f"epoch-{losses.index(min(losses)) + 1:04d}"
    assert os.readlink(tmp_path / "run" / "best") == best and best in checkpoints(tmp_path)
    assert {"config.json", "tokenizer.json"} <= {
        path.name for path in (tmp_path / "run/best/rank-0").iterdir()
    }


def test_val_beside_the_data_is_taken(tmp_path, model):
    data = text_file(tmp_path)
    text_file(tmp_path, 37, seed=2).rename(tmp_path / "val.jsonl")
    assert "[EPOCH]" in run(tmp_path / "out", *model, "--data", data).output


def test_a_second_sigterm_after_the_save_changes_nothing(tmp_path, model):
    command = [sys.executable, "-m", LM, "--output", tmp_path, *model, "--epochs", 100, *OFTEN]
    process = subprocess.Popen(
        [*map(str, command)],
        env=environment(HF_HUB_OFFLINE=1),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with process:
        next(line for line in process.stdout if line.startswith(b"[STEP]"))
        process.send_signal(signal.SIGTERM)
        next(line for line in process.stdout if line.startswith(b"[DONE]"))
        while process.poll() is None:  # the interpreter takes back all handlers while it ends
            process.send_signal(signal.SIGTERM)
            time.sleep(0.01)
        assert process.returncode == 75


def test_a_loss_that_is_not_a_number_is_not_the_best(tmp_path, model):
    done = run(tmp_path, *model, *evaluated(tmp_path), "--set", "learning_rate=1e30", code=3)
    assert "val_loss=nan" in done.output and not (tmp_path / "run" / "best").exists()


def test_a_last_step_amid_an_epoch_is_saved_once(tmp_path, model):
    done = run(tmp_path, *model, "--set", "max_steps=12", "--save-every", 6)
    assert checkpoints(tmp_path) == ["epoch-0001-step-00000006", "epoch-0001-step-00000012"]
    assert done.fact("DONE", "status") == "finished"


@pytest.mark.parametrize(
    "part", ["model.safetensors", "optimizer.pt", "rng_state.pth", "scheduler.pt", "parts.json"]
)
@pytest.mark.parametrize("damage", ["missing", "cut", "empty"])
def test_a_checkpoint_that_lacks_a_part_is_never_resumed_from(tmp_path, model, part, damage):
    flags = (*model, "--save-every", 10, "--set", "max_steps=17")
    run(tmp_path, *flags)
    file = tmp_path / "run" / "epoch-0001" / "rank-0" / part
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[: 0 if damage == "empty" else -3])
    second = run(tmp_path, *flags)
    assert second.fact("TRAIN", "incomplete") == "epoch-0001"
    assert second.fact("TRAIN", "resumed") == "epoch-0001-step-00000010"


ANOTHER_RUN = """\
--seq-len 8
--seed 3
--lora 2
--batch 4
--data other
--set seed=3
--set data_seed=3
--set optim=sgd
"""


@pytest.mark.parametrize("flags", ANOTHER_RUN.splitlines())
def test_a_run_of_other_data_or_another_shape_is_refused(tmp_path, model, flags):
    run(tmp_path, *model)
    before = hashes(tmp_path, "epoch-0001")
    other = str(text_file(tmp_path, seed=9))
    run(tmp_path, *model, *flags.replace("other", other).split(), code=1)
    assert hashes(tmp_path, "epoch-0001") == before


def test_it_trains_without_a_launcher(tmp_path, model):
    command = [sys.executable, "-m", LM, "--output", tmp_path, *model, "--set", "max_steps=2"]
    done = ran(*command, env=environment(HF_HUB_OFFLINE=1), timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_choice_before_the_process_group_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="after the Trainer"):
        newest(str(tmp_path))


def test_steps_that_are_not_finite_do_not_count(tmp_path, model):
    done = run(tmp_path, *model, "--lr", 1e30, "--set", "warmup_steps=0", code=3)
    assert done.fact("DONE", "status") == "not-finite" and int(done.fact("DONE", "skipped")) > 8


@pytest.mark.parametrize("flags", [("--lora", 4), ("--set", "bf16=true")])
def test_settings_act(tmp_path, model, flags):
    for name, more in {"plain": (), "again": (), "changed": flags}.items():
        run(tmp_path / name, *model, *more)
    states = [
        (tmp_path / name / "run/epoch-0001/rank-0/optimizer.pt").read_bytes()
        for name in os.listdir(tmp_path)
    ]
    assert len({*states}) == 2, "another optimizer state, and only for the other setting"
    files = {path.name for path in (tmp_path / "changed/run/epoch-0001/rank-0").iterdir()}
    assert ("adapter_model.safetensors" in files) == (flags[0] == "--lora")


def test_new_weights_are_the_same_at_each_start(tmp_path, model):
    losses = {
        run(tmp_path / str(n), *model, "--from-scratch", "--lora", 2).fact("STEP", "loss")
        for n in range(2)
    }
    assert len(losses) == 1


def test_a_full_disk_ends_the_run_and_leaves_the_last_checkpoint(tmp_path, model):
    """On a file system of 3 MB in a namespace of its own."""
    out = tmp_path / "out"
    out.mkdir()
    train = [LM, "--output", out, *model, "--keep", 0, "--save-every", 2]
    done = on_small_disk(out, 3, *train, then='ls "$0/run" >&2', HF_HUB_OFFLINE=1)
    assert done.returncode == 1 and "No space left on device" in done.stderr
    assert "epoch-0001-step-00000002" in done.stderr


ASK, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
GOOD = '{"text": "good"}\n\n'


def messages(*found: object) -> str:
    """A good line, and one with these messages."""
    return "\n\n".join(json.dumps({"messages": each}) for each in ([ASK, ANSWER], [*found]))


# What is in the file, and what is said of its third line.
BAD_DATA = {
    "nothing": ("", ""),
    "blank lines": ("\n\n", ""),
    "not JSON": (GOOD + '{"text": ', "Expecting value"),
    "a list": (GOOD + "[1]", "must be an object"),
    "unknown": (GOOD + '{"body": "a"}', "has body"),
    "number": (GOOD + '{"text": 3}', "text: must be a text"),
    "no completion": (GOOD + '{"prompt": "a"}', "completion: must be a text"),
    "no messages": (GOOD + '{"messages": []}', "messages: must be a list"),
    "another kind": (
        GOOD + '{"prompt": "a", "completion": "b"}',
        "has prompt, the lines before have text",
    ),
    "binary": (GOOD.encode() + b"\xff\xfe\n", "codec can't decode"),
    "no answer": (messages(ASK), "messages"),
    "an answer of nothing": (messages(ASK, {"role": "assistant", "content": None}), "messages"),
    "no content": (messages(ASK, {"role": "assistant"}), "messages"),
    "parts": (
        messages(ASK, {"role": "assistant", "content": [{"type": "text", "text": "b"}]}),
        "messages",
    ),
    "no role": (messages({"content": "a"}, ANSWER), "messages"),
    "a text": (messages("a", ANSWER), "messages"),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data_are_refused_with_file_and_line(tmp_path, model, name):
    content, words = BAD_DATA[name]
    file = tmp_path / "bad.jsonl"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    output = run(tmp_path, *model, "--data", file, code=2).output
    assert words in output and (not words or f"{file}:3: " in output)


def test_samples_are_no_longer_than_the_models_positions(tmp_path):
    model = language_model(tmp_path, "gpt2")
    file = write(tmp_path / "m.jsonl", [{"text": 600 * "a"}])
    assert (
        run(tmp_path, *model, "--data", file, "--seq-len", 1024).fact("TRAIN", "seq_len") == "512"
    )
