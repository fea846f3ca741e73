"""--data in zstd and Parquet: the documents of JSON lines, whatever the number of processes, in little memory."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest
from backports import zstd
from pyarrow import parquet

from gpuworker.train import data_files, dataset
from gpuworker.train.data_files import DataError, default_validation, find_files
from tests.helpers.processes import SOURCE
from tests.helpers.train_worlds import losses, train

TEXTS = [f"{number} " + "é" * (number % 7) for number in range(100)]
CHECKED = {zstd.CompressionParameter.checksum_flag: 1}  # as the command does
CHAT = {"messages": [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]}


def write_zstd(path: Path, documents: list[dict], frames: int = 1) -> Path:
    """One file of several compressed frames, as parallel compressors write it."""
    lines = [json.dumps(each) + "\n" for each in documents]
    shares = [lines[number * len(lines) // frames : (number + 1) * len(lines) // frames] for number in range(frames)]
    path.write_bytes(b"".join(zstd.compress("".join(share).encode(), options=CHECKED) for share in shares))
    return path


def write_parquet(path: Path, documents: list[dict], rows: int = 1000) -> Path:
    parquet.write_table(pyarrow.Table.from_pylist(documents), path, row_group_size=rows)
    return path


def texts(files: list[Path], parts: int) -> list[str]:
    return [text for part in range(parts) for ((text, _),) in dataset.read_documents(files, part, parts, None)]


@pytest.mark.parametrize("seed", range(20))
def test_any_number_of_processes_reads_every_document_once_and_in_order(tmp_path, seed):
    draw = random.Random(seed)
    expected = []
    for number in range(draw.randint(1, 4)):
        found = [f"{number}-{line}" for line in range(draw.choice([1, 3, 50]))]
        documents, kind = [{"text": text} for text in found], draw.choice(["jsonl.zst", "parquet", "jsonl"])
        path = tmp_path / f"{number}.{kind}"
        if kind == "parquet":
            write_parquet(path, documents, rows=draw.choice([1, 7, 1000]))
        elif kind == "jsonl.zst":
            write_zstd(path, documents, frames=draw.choice([1, 2, 5]))
        else:
            path.write_text("".join(json.dumps(each) + "\n" for each in documents))
        expected += found
    for parts in (1, 2, 3, 8):
        assert texts(find_files(str(tmp_path)), parts) == expected, f"{parts} processes"


def test_columns_are_the_keys_of_a_line(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", [{"id": 7, "prompt": "2+2=", "completion": "4"}])
    assert list(dataset.read_documents([path], 0, 1, None)) == [[("2+2=", False), ("4", True)]]
    # The column of tools exists because another row has it: for this row it is as absent as in JSON lines.
    chat = {"messages": [*CHAT["messages"], {"role": "assistant", "content": "5", "tools": "none"}]}
    seen = []

    def template(messages, prompt, tools):
        seen.append(messages)
        return "".join(f"<{each['role']}>{each['content']}" for each in messages) + ("<assistant>" if prompt else "")

    path = write_parquet(tmp_path / "b.parquet", [CHAT, chat])
    first, _ = dataset.read_documents([path], 0, 1, template)
    assert first[1] == ("4", True) and seen[0] == CHAT["messages"]


@pytest.mark.parametrize(
    ("documents", "words"),
    [
        ([{"text": "a"}, {"text": None}], "a.parquet: row 2: none of the known keys"),
        ([{"text": "a"}, {"text": "b"}, {"text": "c"}, {"text": None}], "a.parquet: row 4: none of the known keys"),
        ([{"text": 7}], "a.parquet: row 1: 'text' must be a string, not int"),
        ([{"words": "a"}], "a.parquet: none of the known columns"),
    ],
)
def test_a_bad_row_is_named(tmp_path, documents, words):
    path = write_parquet(tmp_path / "a.parquet", documents, rows=2)
    with pytest.raises(DataError) as error:
        list(dataset.read_documents([path], 0, 1, None))
    assert words in str(error.value)


def test_a_bad_line_of_a_zstd_file_is_named(tmp_path):
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstd.compress(b'{"text": "good"}\n{"text": \n'))
    with pytest.raises(DataError, match=r"a\.jsonl\.zst:2: not JSON"):
        list(dataset.read_documents([path], 0, 1, None))


@pytest.mark.parametrize("damage", ["cut", "none of it", "changed", "empty"])
@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.parquet"])
def test_a_damaged_file_is_refused(tmp_path, name, damage):
    documents = [{"text": str(random.Random(number).random())} for number in range(20000)]
    path = (write_parquet if name.endswith("parquet") else write_zstd)(tmp_path / name, documents)
    whole = path.read_bytes()
    half = len(whole) // 2
    changed = whole[:half] + bytes(each ^ 255 for each in whole[half : half + 400]) + whole[half + 400 :]
    path.write_bytes({"cut": whole[:half], "none of it": b"x" * 100, "changed": changed, "empty": b""}[damage])
    if (name, damage) == ("a.jsonl.zst", "empty"):
        assert list(data_files.read_lines([path], 0, 1)) == []  # as an empty *.jsonl
        return
    with pytest.raises(DataError, match=name.replace(".", r"\.") + r".*(zstd|Parquet)"):
        list(data_files.read_lines([path], 0, 1))


@pytest.mark.parametrize(("name", "package"), [("a.parquet", "pyarrow"), ("a.jsonl.zst", "backports.zstd")])
def test_a_missing_package_is_named_before_anything_is_read(tmp_path, monkeypatch, name, package):
    (tmp_path / name).write_bytes(b"x")
    for module in ("pyarrow", "pyarrow.parquet", "compression", "backports", "backports.zstd"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match=rf"{name}: .*{package}"):
        find_files(str(tmp_path))


def test_validation_data_may_be_in_every_format(tmp_path):
    for name in ("val.parquet", "val.jsonl.zst", "val.jsonl.gz", "val.jsonl"):
        for old in tmp_path.iterdir():
            old.unlink()
        for each in (name, "train.parquet"):
            (tmp_path / each).touch()
        assert default_validation(str(tmp_path)) == [tmp_path / name]
        assert find_files(str(tmp_path), without=[tmp_path / name]) == [tmp_path / "train.parquet"]


def test_a_run_on_parquet_has_the_losses_of_json_lines(tmp_path):
    documents = [{"text": text * 4} for text in TEXTS]
    for name in ("jsonl", "jsonl.zst", "parquet"):
        (tmp_path / name).mkdir()
        path = tmp_path / name / f"train.{name}"
        if name == "jsonl":
            path.write_text("".join(json.dumps(each) + "\n" for each in documents))
        else:
            (write_zstd if name == "jsonl.zst" else write_parquet)(path, documents)
        train(tmp_path / name, "--data", path, "--max-steps", 4, world=2)
    assert losses(tmp_path / "jsonl") == losses(tmp_path / "jsonl.zst") == losses(tmp_path / "parquet")


MEASURE = """
import re, sys
from pathlib import Path
from gpuworker.train import compressed_lines, data_files, parquet_rows
import backports.zstd, pyarrow.parquet

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10

before = peak()
print(sum(1 for _ in data_files.read_lines([Path(sys.argv[1])], 0, 1)), peak() - before)
"""


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.parquet"])
def test_memory_does_not_grow_with_the_file(tmp_path, name):
    documents = [{"text": random.Random(number).randbytes(5000).hex()} for number in range(20000)]  # 200 MB
    write_parquet(tmp_path / name, documents, 20000) if "parquet" in name else write_zstd(tmp_path / name, documents)
    command = [sys.executable, "-c", MEASURE, tmp_path / name]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={"PYTHONPATH": str(SOURCE)})
    count, mebibytes = map(int, output.stdout.split())
    assert count == 20000 and mebibytes < 120, output
