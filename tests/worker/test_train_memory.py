"""A model that cannot fit is refused before it is loaded, with the way out."""

from __future__ import annotations

import contextlib
import re
import types

import pytest
import torch

from gpuworker.train import memory, train_framework, train_smoke
from tests.helpers.train_worlds import Ranks

MODEL = ("--from-scratch", "llama-tiny", "--seq-len", "32", "--epochs", "1", "--device", "cpu", "--max-steps", "2")


def limited(monkeypatch, size: int) -> None:
    monkeypatch.setattr(memory, "host_bytes", lambda: size)


def test_a_model_that_cannot_fit_is_refused(monkeypatch, capfd, tmp_path):
    limited(monkeypatch, 1 << 20)
    assert train_framework.main([*MODEL, "--output", str(tmp_path), "--cache", str(tmp_path)]) == 2
    (line,) = [each for each in capfd.readouterr().out.splitlines() if each.startswith("[FATAL]")]
    assert "--engine fsdp" in line and not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("parameters", "flags", "ranks", "needed"),
    [
        (1000, [], 1, 16_000),
        (1000, [], 4, 16_000),
        (1000, ["--engine", "fsdp"], 4, 4_000),
        (1000, ["--lora"], 4, 4_000),
    ],
)
def test_the_limit_is_exact(monkeypatch, parameters, flags, ranks, needed):
    """One byte less than weights, gradients and two moments is refused, and what fits exactly is not."""
    spec = types.SimpleNamespace(build_empty=lambda: torch.nn.Linear(parameters, 1, bias=False, device="meta"))
    args = train_framework.make_parser().parse_args([*MODEL, *flags])
    context = types.SimpleNamespace(
        world_size=ranks,
        local_world_size=ranks,
        device=torch.device("cpu"),
        raise_on_all_ranks=contextlib.nullcontext,
    )
    limited(monkeypatch, needed * ranks)
    memory.require_room(spec, args, context)
    limited(monkeypatch, needed * ranks - 1)
    with pytest.raises(memory.ModelError):
        memory.require_room(spec, args, context)


@pytest.mark.parametrize(("limit", "expected"), [("max\n", 8 << 20), ("4194304\n", 4 << 20), (None, 8 << 20)])
def test_the_memory_of_a_container_is_its_limit(tmp_path, limit, expected):
    (tmp_path / "meminfo").write_text("MemTotal:        8192 kB\nMemFree:         1 kB\n")
    if limit:
        (tmp_path / "memory.max").write_text(limit)
    assert memory.host_bytes(tmp_path / "memory.max", tmp_path / "meminfo") == expected


@pytest.mark.parametrize(("limit", "expected"), [("max\n", 6 << 20), ("4194304\n", 2 << 20), (None, 6 << 20)])
def test_the_free_memory_of_a_container_includes_its_cached_files(tmp_path, limit, expected):
    (tmp_path / "meminfo").write_text("MemTotal:        8192 kB\nMemAvailable:        6144 kB\n")
    if limit:
        (tmp_path / "memory.max").write_text(limit)
        (tmp_path / "memory.current").write_text(f"{3 << 20}\n")
        (tmp_path / "memory.stat").write_text(f"anon {2 << 20}\ninactive_file {600 << 10}\nactive_file {424 << 10}\n")
    assert memory.free_bytes(tmp_path / "memory.max", tmp_path / "meminfo") == expected


def test_a_model_that_fits_trains(monkeypatch, tmp_path):
    assert memory.host_bytes() > 1 << 30
    assert train_smoke.main(["--device", "cpu", "--output", str(tmp_path)]) == 0


def peak_mib(folder, engine: str) -> int:
    """Largest peak of two ranks that train 85 million parameters for two steps."""
    folder.mkdir()
    words = ("--from-scratch", "gpt2-124m", "--seq-len", 32, "--batch", 1, "--max-steps", 2, "--device", "cpu")
    ranks = Ranks("tests.helpers.train_peak", (*words, "--engine", engine), 2, folder)
    assert ranks.wait() == [0, 0], ranks.all_output()
    found = [int(number) for number in re.findall(r"peak of the process: (\d+) MiB", ranks.all_output())]
    assert len(found) == 2
    return max(found)


@pytest.mark.slow
def test_a_sharded_model_needs_less_memory_on_each_rank(tmp_path):
    """Of what the program does not need, DDP takes 16 bytes per parameter, and two shards half of them, and blocks."""
    peaks = {engine: peak_mib(tmp_path / engine, engine) for engine in ("ddp", "fsdp")}
    assert peaks["fsdp"] < 0.8 * peaks["ddp"], peaks
