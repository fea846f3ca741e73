"""--data names a file, a folder or a pattern, also of compressed files; any number of processes reads them the same."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path

import pytest

from gpuworker.train import data_files, dataset
from gpuworker.train.data_files import DataError, default_validation, find_files


def write(path: Path, texts: list[str]) -> Path:
    content = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("seed", range(40))
def test_any_number_of_processes_reads_every_line_once_and_in_order(tmp_path, seed):
    draw = random.Random(seed)
    expected, files = [], []
    for number in range(draw.randint(1, 5)):
        texts = [f"{number}-{line} " + "x" * draw.choice([0, 1, 70, 500]) for line in range(draw.choice([0, 1, 3, 40]))]
        files.append(write(tmp_path / f"{number}.jsonl{draw.choice(['', '.gz'])}", texts))
        expected += texts
    assert find_files(str(tmp_path)) == files
    for parts in (1, 2, 3, 8):
        found = [one for part in range(parts) for one in dataset.read_documents(files, part, parts, None)]
        assert [text for ((text, _),) in found] == expected, f"{parts} processes"


def test_a_folder_is_all_its_files_but_the_validation_data_and_hidden_files(tmp_path):
    for name in ("b.jsonl", "a.jsonl.gz", "val.jsonl", "README.md", ".old.jsonl", "._b.jsonl", ".c.jsonl.gz"):
        write(tmp_path / name, ["x"])
    validation = default_validation(str(tmp_path))
    assert validation == [tmp_path / "val.jsonl"]
    expected = [tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl"]
    assert find_files(str(tmp_path), without=validation) == expected
    assert find_files(str(tmp_path / "*.jsonl*"), without=validation) == expected
    assert default_validation(str(tmp_path / "b.jsonl")) == validation
    assert default_validation(str(tmp_path / "*.jsonl")) == validation
    assert default_validation(str(tmp_path / "val.jsonl")) == []
    assert find_files(str(tmp_path / "val.jsonl"), without=default_validation(str(tmp_path / "val.jsonl")))


@pytest.mark.parametrize("named", ["", "*.jsonl"])
def test_a_folder_that_holds_only_the_validation_data_is_refused(tmp_path, named):
    write(tmp_path / "val.jsonl", ["x"])
    with pytest.raises(DataError, match="no file but the validation data"):
        find_files(str(tmp_path / named), without=[tmp_path / "val.jsonl"])


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("absent.jsonl", "absent.jsonl: no such file"),
        ("empty", "empty: no *.jsonl"),
        ("*.json", "*.json: no file"),
        ("data.jsonl.xz", "data.jsonl.xz: neither JSON lines"),
    ],
)
def test_what_cannot_be_read_is_refused_before_anything_is(tmp_path, named, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "data.jsonl.xz").write_bytes(b"x")
    with pytest.raises(DataError) as error:
        find_files(str(tmp_path / named))
    assert words in str(error.value)


@pytest.mark.parametrize("named", ["pipe.jsonl", "", "*.jsonl", "/dev/null"])
def test_what_is_not_a_file_is_refused_and_not_waited_for(tmp_path, named):
    write(tmp_path / "a.jsonl", ["x"])
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(DataError, match="not a regular file") as error:
        find_files(str(tmp_path / named))
    assert ("/dev/null" if named == "/dev/null" else "pipe.jsonl") in str(error.value)


@pytest.mark.parametrize("named", ["", "*", "**"])
def test_folders_within_a_folder_are_not_read(tmp_path, named):
    write(tmp_path / "a.jsonl", ["x"])
    (tmp_path / "b").mkdir()
    assert find_files(str(tmp_path / named)) == [tmp_path / "a.jsonl"]


@pytest.mark.parametrize("named", ["", "*"])
@pytest.mark.parametrize(("fault", "words"), [("folder", "a folder"), ("link", "links to /not/there")])
def test_a_name_of_data_that_is_no_file_is_refused(tmp_path, named, fault, words):
    write(tmp_path / "a.jsonl", ["x"])
    name = tmp_path / "b.parquet"
    name.mkdir() if fault == "folder" else name.symlink_to("/not/there")
    with pytest.raises(DataError, match=rf"b\.parquet: .*{words}"):
        find_files(str(tmp_path / named))


def test_a_folder_whose_files_are_named_is_none_of_the_data(tmp_path):
    (tmp_path / "a.jsonl").mkdir()
    write(tmp_path / "a.jsonl" / "part.jsonl", ["x"])
    assert find_files(str(tmp_path / "**")) == [tmp_path / "a.jsonl" / "part.jsonl"]


def test_a_validation_file_that_a_link_does_not_reach_is_refused(tmp_path):
    write(tmp_path / "a.jsonl", ["x"])
    (tmp_path / "val.jsonl").symlink_to("/not/there")
    with pytest.raises(DataError, match=r"val\.jsonl: no such file: it links to /not/there"):
        default_validation(str(tmp_path))


def test_no_validation_data_is_trained_on(tmp_path):
    for name in ("a.jsonl", "val.jsonl", "val.de.jsonl.gz", "val.jsonl.gz"):
        write(tmp_path / name, ["x"])
    for named in ("", "*", "**"):
        assert find_files(str(tmp_path / named), without=[tmp_path / "val.jsonl"]) == [tmp_path / "a.jsonl"], named
    assert len(find_files(str(tmp_path / "val.*"))) == 3, "who names them means them"
    assert len(find_files(str(tmp_path), of_validation=True)) == 4
    with pytest.raises(DataError, match=r"val\.jsonl and val\.jsonl\.gz: which is the validation data"):
        default_validation(str(tmp_path))
    (tmp_path / "val.jsonl.gz").unlink()
    assert default_validation(str(tmp_path / "**" / "*.jsonl")) == [tmp_path / "val.jsonl"]


def test_a_pipe_is_no_validation_data(tmp_path):
    write(tmp_path / "a.jsonl", ["x"])
    os.mkfifo(tmp_path / "val.jsonl")
    with pytest.raises(DataError, match=r"val\.jsonl: not a regular file"):
        default_validation(str(tmp_path / "a.jsonl"))


def test_a_bad_line_of_a_compressed_file_is_named(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "good"}\n{"text": \n'))
    with pytest.raises(DataError, match=r"a\.jsonl\.gz:2: not JSON"):
        list(dataset.read_documents([path], 0, 1, None))


@pytest.mark.parametrize("damage", ["cut", "no gzip", "changed"])
def test_a_damaged_compressed_file_is_refused(tmp_path, damage):
    random.seed(1)
    whole = gzip.compress("".join(f'{{"text": "{random.random()}"}}\n' for _ in range(2000)).encode())
    content = {"cut": whole[: len(whole) // 2], "no gzip": b"x" * 100, "changed": whole[:-6] + b"\0" * 6}[damage]
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.jsonl\.gz:\d+: not a whole gzip file"):
        list(data_files.read_lines([path], 0, 1))
