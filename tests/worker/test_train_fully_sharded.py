"""Models that are sharded over ranks (--engine fsdp): the same losses as DDP, and checkpoints for any number of ranks.

KILLS=20 pytest tests/worker/test_train_fully_sharded.py      for more kills than the usual one, and for more ranks
                                                             beside them; SEED=… for other moments
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from gpuworker.train import checkpoint_files, export, model, train_framework, train_smoke
from gpuworker.train.checkpoint import Checkpointer
from gpuworker.train.checkpoint_files import MANIFEST
from gpuworker.train.distributed import DistributedContext
from gpuworker.train.model_presets import PRESETS
from gpuworker.train.run_checkpoints import RunCheckpoints
from gpuworker.train.train_state import TrainState
from gpuworker.train.volume import NotSharedError
from tests.helpers.train_worlds import DATA, LM, SMOKE, Ranks, checkpoints, losses, report, train

KILLS = int(os.environ.get("KILLS", "1"))
WORLDS = (2, 3) if KILLS == 1 else (2, 4, 3)  # numbers of ranks of one run
UNSHARDED = 0 if KILLS == 1 else 2  # ranks of a run with --engine ddp, whose losses do not depend on them
SEED = int(os.environ.get("SEED", "1"))
STEPS = 6
POINTS = ("--engine", "fsdp", "--samples", 720, "--features", 17, "--keep", 9)  # parts of unequal size, and empty ones


def points(folder, *words: object, world: int, code: int = 0) -> Ranks:
    return train(folder, *POINTS, *words, world=world, module=SMOKE, code=code)


def digests(folder, name: str = "latest") -> dict[str, str]:
    """SHA-256 of all parts of a checkpoint."""
    files = json.loads((folder / "run" / name / MANIFEST).read_text())["files"]
    return {name: entry["sha256"] for name, entry in files.items() if name.endswith(".distcp")}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    import transformers

    folder = tmp_path_factory.mktemp("pretrained")
    kind, settings = PRESETS["llama-tiny"]
    config = transformers.AutoConfig.for_model(kind, vocab_size=257, **settings)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    model.byte_tokenizer().save_pretrained(folder)
    return folder


def language_model(folder, pretrained, engine: str, world: int) -> list[float]:
    folder.mkdir()
    arguments = ("--model-local-dir", pretrained, "--seq-len", 64, "--batch", 8 // max(1, world), "--lr", 1e-3,
                 "--max-steps", STEPS, "--log-every", 1, "--device", "cpu", "--output", folder,
                 "--data", DATA / "train.jsonl", "--engine", engine)  # fmt: skip
    ranks = Ranks(LM, arguments, world, folder)
    assert set(ranks.wait()) == {0}, ranks.all_output()
    return [*losses(folder), report(folder)["evaluations"][-1]["loss"]]


def test_the_losses_of_a_language_model_are_those_of_ddp(tmp_path, pretrained):
    worlds = {"ddp": UNSHARDED, "fsdp": 2}
    made = [language_model(tmp_path / engine, pretrained, engine, world) for engine, world in worlds.items()]
    assert len(made[0]) == STEPS + 1 and made[1] == pytest.approx(made[0], abs=1e-5)
    check_export(tmp_path / "fsdp" / "run" / "latest", tmp_path / "ddp" / "run" / "latest" / "rank-0", tmp_path / "new")


def check_export(source, expected, target) -> None:
    """The exported weights are those that DDP has saved, in several files, and the tokenizer is there."""
    import transformers

    export.export(source, target, file_bytes=100_000)
    assert len(list(target.glob("*.safetensors"))) > 1 and not (target / "trainer.json").exists()
    found, other = (transformers.AutoModelForCausalLM.from_pretrained(each).state_dict() for each in (target, expected))
    assert found.keys() == other.keys()
    assert all(torch.allclose(found[name], other[name], atol=1e-4) for name in other)
    assert transformers.AutoTokenizer.from_pretrained(target)("Shall").input_ids
    assert export.main([str(source), str(target)]) == export.main([str(expected.parent), str(target / "b")]) == 2


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    points(folder, "--batch", 18, "--save-every", 3, world=2)
    return folder


def test_a_run_goes_on_with_another_number_of_ranks(tmp_path, uninterrupted):
    """The losses are those of a run whose number of ranks never changed."""
    for number, world in enumerate(WORLDS, 1):
        ranks = points(tmp_path, "--batch", 36 // world, "--max-steps", 12 * number, world=world)
        assert ("resumed=no" in ranks.output) == (number == 1)
    assert losses(tmp_path) == pytest.approx(losses(uninterrupted)[: 12 * len(WORLDS)], rel=1e-5)


@pytest.mark.parametrize("number", range(KILLS))
def test_a_run_that_is_killed_ends_with_the_same_bits(tmp_path, uninterrupted, number):
    moments = random.Random(f"{SEED}-{number}")
    words = (*POINTS, "--device", "cpu", "--output", tmp_path, "--batch", 18, "--save-every", 3)
    ranks = Ranks(SMOKE, words, 2, tmp_path)
    step = moments.randint(4, 38)
    ranks.wait_for_output(f" step={step}/")
    ranks.signal(signal.SIGKILL, moments.choice([[0], [1], [0, 1]]))
    codes, found = ranks.wait(), checkpoints(tmp_path)
    print(f"killed in step {step}: exit codes {codes}, checkpoints {found}")
    assert found or step < 7  # the save of step 6 waits for the one of step 3
    again = points(tmp_path, "--batch", 18, "--save-every", 3, world=2)
    assert ("resumed=epoch-" in again.output) == bool(found) or set(codes) == {0}, (codes, found, again.output)
    assert "ignored=" not in again.output and digests(tmp_path) == digests(uninterrupted)
    assert losses(tmp_path) == losses(uninterrupted)


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_a_checkpoint_with_a_damaged_part_is_skipped(tmp_path, uninterrupted, damage):
    shutil.copytree(uninterrupted / "run", tmp_path / "run", symlinks=True)
    part = tmp_path / "run" / "epoch-0002" / "shards" / "__1_0.distcp"
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data) if damage == "flipped" else part.unlink()
    ranks = points(tmp_path, "--batch", 18, world=2)
    assert "ignored=" in ranks.output and "shards/__1_0.distcp" in ranks.output
    assert "resumed=epoch-0002-step-00000039" in ranks.output and digests(tmp_path) == digests(uninterrupted)


def test_a_part_that_cannot_be_read_ends_the_run_and_stays(tmp_path, uninterrupted, monkeypatch, capfd):
    monkeypatch.setattr(checkpoint_files, "RETRY_S", 0.0)
    shutil.copytree(uninterrupted / "run", tmp_path / "run", symlinks=True)
    part = tmp_path / "run" / "epoch-0002" / "shards" / "__1_0.distcp"
    part.unlink()
    part.symlink_to(part.name)  # cannot be read by any user, root included
    names = checkpoints(tmp_path)
    words = (*POINTS, "--device", "cpu", "--output", tmp_path, "--batch", 18)
    assert train_smoke.main([str(word) for word in words]) == 1
    output = capfd.readouterr().out
    assert "[FATAL]" in output and "__1_0.distcp" in output and "[STEP]" not in output
    assert checkpoints(tmp_path) == names


def test_the_checkpoint_of_another_engine_is_refused(tmp_path, uninterrupted):
    shutil.copytree(uninterrupted / "run", tmp_path / "run", symlinks=True)
    ranks = points(tmp_path, "--engine", "ddp", world=0, code=2)
    assert "engine was fsdp, is ddp" in ranks.output


def checkpoints_of_two_ranks(folder, monkeypatch, gathered) -> RunCheckpoints:
    context = DistributedContext()
    monkeypatch.setattr(context, "all_gather_object", gathered)
    args = train_smoke.make_parser().parse_args(["--output", str(folder), "--engine", "fsdp"])
    checkpointer = Checkpointer(folder / "run", keep=1)
    return RunCheckpoints(train_smoke.ClassifierSpec(args), args, context, checkpointer, None)


def test_a_volume_that_another_rank_does_not_see_is_refused(tmp_path, monkeypatch):
    def unseen_by_rank_1(value) -> list:
        return [value, False if value is True else value]

    found = checkpoints_of_two_ranks(tmp_path, monkeypatch, unseen_by_rank_1)
    with pytest.raises(NotSharedError, match="rank 1"):
        found.check_volume(0, True)
    checkpoints_of_two_ranks(tmp_path, monkeypatch, lambda value: [value, value]).check_volume(0, True)
    assert list((tmp_path / "run").iterdir()) == []


def parts_of_rank_1(value) -> list:
    """Return the value of rank 0, and that of a rank 1 whose part only it sees."""
    return [value, {"shards/__1_0.distcp"} if isinstance(value, set) else ""]


class TwoThreads(DistributedContext):
    """A rank of two that are threads of one process and gather over a barrier."""

    def __init__(self, rank: int, values: list, met: threading.Barrier) -> None:
        super().__init__()
        self.rank, self.world_size, self.values, self.met = rank, 2, values, met

    def all_gather_object(self, value) -> list:
        self.values[self.rank] = value
        self.met.wait()
        gathered = list(self.values)
        self.met.wait()
        return gathered


def test_a_temporary_file_of_a_slower_rank_does_not_fail_the_save(tmp_path, monkeypatch):
    """The safetensors library writes a temporary file beside its file, and renames it."""
    rank_1_has_written = threading.Event()

    def write_slowly() -> None:
        (tmp_path / ".tmp").touch()
        assert rank_1_has_written.wait(60)
        time.sleep(0.3)  # rank 1 may list the folder meanwhile
        (tmp_path / ".tmp").rename(tmp_path / "part-0")

    ranks = [checkpoints_of_two_ranks(tmp_path, monkeypatch, None) for _ in range(2)]
    values, met = [None, None], threading.Barrier(2, timeout=60)
    for rank, found in enumerate(ranks):
        found.background = TwoThreads(rank, values, met)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ranks[0].write_part, tmp_path, write_slowly)
        second = pool.submit(ranks[1].write_part, tmp_path, rank_1_has_written.set)
        first.result()
        second.result()


def test_a_part_of_another_rank_that_rank_0_does_not_see_is_not_committed(tmp_path, monkeypatch):
    found = checkpoints_of_two_ranks(tmp_path, monkeypatch, parts_of_rank_1)
    model = types.SimpleNamespace(copy_bytes=lambda: 0, save=lambda *rest: lambda: None)
    found.save(TrainState(step=1, position=1), model, best=False)
    found.wait()
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize("word", ["--compile", "--lora", "--find-unused-parameters"])
def test_options_that_sharding_does_not_support_are_usage_errors(word, capsys):
    with pytest.raises(SystemExit) as error:
        train_framework.main(["--engine", "fsdp", word])
    assert error.value.code == 2 and word in capsys.readouterr().out
