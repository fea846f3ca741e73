"""Nodes that would not train the same are refused within seconds, on all ranks, with what differs."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from gpuworker.train import token_file
from gpuworker.train.dataset import DataError
from tests.helpers.processes import free_port
from tests.helpers.train_models import make_model
from tests.helpers.train_worlds import LM, SMOKE, TINY, Ranks

LINES = [json.dumps({"text": f"Line {number} of the data."}) + "\n" for number in range(200)]


def start(
    folder: Path, per_rank: list[tuple], module: str = LM, first: tuple = TINY, variables: Iterable[dict] = ()
) -> list[Ranks]:
    """One rank per node, each with its own arguments and its own cache."""
    port, nodes, own = free_port(), [], list(variables) or [{}] * len(per_rank)
    for rank, more in enumerate(per_rank):
        local = folder / f"node-{rank}"
        local.mkdir(exist_ok=True)
        found = {"RANK": rank, "WORLD_SIZE": len(per_rank), "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        found |= {"NODE_RANK": rank, "MASTER_PORT": port, "NODE_NAME": f"host-{rank}", **own[rank]}
        nodes.append(Ranks(module, (*first, *more), 0, local, **found))
    return nodes


def refused(nodes: list[Ranks], *words: str) -> None:
    codes = [node.wait(120) for node in nodes]
    outputs = "\n".join(node.all_output() for node in nodes)
    assert codes == [[2]] * len(nodes), outputs
    for node in nodes:
        assert "[FATAL]" in node.output and all(word in node.output for word in words), outputs
        assert "[STEP]" not in node.output and "Traceback" not in node.output, outputs


def data(folder: Path, name: str, lines: list[str], val: bool = False) -> Path:
    path = folder / name / "train.jsonl"
    path.parent.mkdir()
    path.write_text("".join(lines))
    os.utime(path, (1.7e9, 1.7e9))
    if val:
        (path.parent / "val.jsonl").write_text(LINES[0])
    return path


def test_other_data_of_the_same_size_and_time(tmp_path):
    files = data(tmp_path, "a", LINES), data(tmp_path, "b", LINES[::-1])
    assert files[0].stat().st_size == files[1].stat().st_size
    refused(start(tmp_path, [("--data", file) for file in files]), "host-0", "host-1", "--data")


def test_validation_data_on_one_node_only(tmp_path):
    files = data(tmp_path, "a", LINES, val=True), data(tmp_path, "b", LINES)
    refused(start(tmp_path, [("--data", file) for file in files]), "validation", "host-1", "val.jsonl")


def test_data_on_one_node_only(tmp_path):
    files = data(tmp_path, "a", LINES), tmp_path / "none.jsonl"
    refused(start(tmp_path, [("--data", file) for file in files]), "no such file")


@pytest.mark.parametrize("flags", [("--seq-len", 32), ("--epochs", 3), ("--log-every", 7), ("--output", "out")])
def test_other_flags(tmp_path, flags):
    refused(start(tmp_path, [(), flags]), "the command line", flags[0], "host-1")


@pytest.mark.parametrize("name, values", [("--run", "ab"), ("--output", "ab"), ("--trackers", ("none", "auto"))])
def test_other_names_of_one_run(tmp_path, name, values):
    flags = [(name, tmp_path / value if name == "--output" else value) for value in values]
    refused(start(tmp_path, flags), "the command line", name, "host-1")


def test_another_run_id(tmp_path):
    nodes = start(tmp_path, [("--run", "one")] * 2, variables=[{"RUN_ID": "a"}, {"RUN_ID": "b"}])
    refused(nodes, "the command line", "RUN_ID", "host-1")


def test_another_model(tmp_path):
    made = [make_model(tmp_path / name, num_hidden_layers=layers) for name, layers in (("a", 2), ("b", 1))]
    words = ("--seq-len", 32, "--device", "cpu")
    nodes = start(tmp_path, [("--model-local-dir", folder) for folder in made], first=words)
    refused(nodes, "the model", "host-1", "num_hidden_layers is 2 for rank 0")


def test_places_may_differ(tmp_path):
    files = data(tmp_path, "a", LINES, val=True), data(tmp_path, "b", LINES, val=True)
    nodes = start(tmp_path, [("--data", file, "--cache", file.parent) for file in files])
    assert [node.wait() for node in nodes] == [[0], [0]], nodes[0].output


def test_a_stop_while_data_are_tokenized_ends_every_rank_at_once(tmp_path):
    file = data(tmp_path, "a", [json.dumps({"text": "word " * 2000}) + "\n"] * 20_000)
    nodes = start(tmp_path, [("--data", file)] * 2)
    for node in nodes:
        node.wait_for_output("[DDP]")
    time.sleep(2)  # the ranks are tokenizing: there is no line for it
    began = time.monotonic()
    for node in nodes:
        node.signal(15, [0])
    codes = [node.wait(60) for node in nodes]
    assert codes == [[143], [143]] and time.monotonic() - began < 30, codes


def test_a_stop_while_a_rank_waits_for_another_one_ends_it_at_once(tmp_path):
    """The wait is in C++, where no Python handler runs."""
    (lone, other) = start(tmp_path, [(), ()], SMOKE, ("--device", "cpu"))
    other.processes[0].kill()
    time.sleep(3)
    began = time.monotonic()
    lone.signal(15, [0])
    assert lone.wait(60) == [143] and time.monotonic() - began < 30, lone.output


def test_nodes_may_share_a_cache(tmp_path):
    """Each with two ranks."""
    port, ranks = free_port(), []
    file = data(tmp_path, "a", LINES, val=True)
    for rank in range(4):
        local = tmp_path / f"node-{rank}"
        local.mkdir()
        variables = {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": rank % 2, "LOCAL_WORLD_SIZE": 2}
        variables |= {"NODE_RANK": rank // 2, "MASTER_PORT": port, "NODE_NAME": f"host-{rank // 2}"}
        words = (*TINY, "--data", file, "--cache", tmp_path / "cache", "--epochs", 1)
        ranks.append(Ranks(LM, words, 0, local, **variables))
    codes = [node.wait() for node in ranks]
    assert codes == [[0]] * 4, "\n".join(node.output for node in ranks)
    assert not [path for path in (tmp_path / "cache").iterdir() if "part" in path.name]
    assert "bytes=" in ranks[0].output and "processes=4 shared=true" in ranks[0].output  # each line is tokenized once


def test_data_tokenized_in_a_step_of_its_own_are_found_by_the_training(tmp_path):
    """Made by three processes and used by two nodes: the files are those of a training that tokenizes itself."""
    file = data(tmp_path, "a", LINES, val=True)
    words = ("--data", file, "--max-steps", 2)
    made = Ranks("gpuworker.train.tokenize_data", (*TINY, *words, "--cache", tmp_path / "made"), 3, tmp_path)
    assert made.wait() == [0, 0, 0], made.all_output()
    assert made.output.count("tokenizes=") == 2 and "[TRAIN]" not in made.output
    nodes = start(tmp_path, [(*words, "--cache", tmp_path / "made")] * 2)
    assert [node.wait() for node in nodes] == [[0], [0]], nodes[0].output
    assert "tokenizes=" not in nodes[0].output and "[STEP]" in nodes[0].output
    nodes = start(tmp_path, [(*words, "--cache", tmp_path / f"node-{rank}") for rank in range(2)])
    assert [node.wait() for node in nodes] == [[0], [0]], nodes[0].output
    assert nodes[0].output.count("processes=1 shared=false") == 2
    contents = [
        {path.relative_to(cache): path.read_bytes() for path in cache.rglob("*") if path.name in ("tokens", "ends")}
        for cache in (tmp_path / "made", tmp_path / "node-0", tmp_path / "node-1")
    ]
    assert len(contents[0]) == 4 and contents == [contents[0]] * 3


def test_the_tokens_of_a_node_that_appear_late_are_waited_for(tmp_path, monkeypatch):
    threading.Timer(0.5, (tmp_path / "late").touch).start()
    token_file.wait_for(tmp_path / "late")
    monkeypatch.setattr(token_file, "VISIBLE_S", 0.1)
    with pytest.raises(DataError, match="does not see"):
        token_file.wait_for(tmp_path / "never")


def test_a_forward_pass_waits_for_no_other_rank(tmp_path):
    """Llama's tables of positions are buffers, which never change. Of the four passes to warm up, one forms buckets."""
    words = ("--from-scratch", "llama-tiny", "--seq-len", 32, "--device", "cpu", "--max-steps", 5)
    ranks = Ranks("tests.helpers.train_broadcasts", words, 2, tmp_path)
    assert ranks.wait() == [0, 0], ranks.all_output()
    lines = [line for line in ranks.output.splitlines() if line.startswith("communication of a forward pass:")]
    assert len(lines) == 4 + 5 and set(lines[4:]) == {"communication of a forward pass:"}


@pytest.mark.parametrize("model", [("gpt2-tiny",), ("llama-tiny",), ("gpt2-tiny", "--lora")])
def test_only_rank_0_builds_a_model_in_the_memory_of_its_host(tmp_path, model):
    """The others receive its weights. Layers that share weights, as those of GPT-2, share them on all ranks."""
    words = ("--from-scratch", *model, "--seq-len", 32, "--device", "cpu", "--max-steps", 3, "--output", tmp_path)
    ranks = Ranks("tests.helpers.train_built", words, 2, tmp_path)
    assert ranks.wait() == [0, 0], ranks.all_output()
    outputs = [output.read_text() for output in ranks.outputs]
    assert ["a whole model" in output for output in outputs] == [True, False]
    counts = [re.findall("parameters: .*", output) for output in outputs]
    assert counts[0] and counts[0] == counts[1]
