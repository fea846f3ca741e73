"""Token files that are damaged are made again, and what killed attempts leave is removed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from test_train_data import codec

from gpuworker.train import held_folder, token_file, token_record
from gpuworker.train.data_files import DataError
from gpuworker.train.distributed import DistributedContext
from tests.helpers.processes import until
from tests.helpers.train_worlds import LM, TINY, Ranks


def prepare(folder: Path) -> Path:
    return token_file.prepare([folder / "data.jsonl"], codec(), folder / "cache", DistributedContext())


@pytest.fixture
def made(tmp_path) -> Path:
    """A token file of several blocks for its checksums."""
    lines = (json.dumps({"text": f"line {number} " * 20}) + "\n" for number in range(200))
    (tmp_path / "data.jsonl").write_text("".join(lines))
    return prepare(tmp_path)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 // 8 * 8)


def zero(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(bytes(size - size // 2))


def flip_first(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut": cut,
    "zeroed": zero,
    "flipped": flip_first,
    "empty": lambda path: os.truncate(path, 0),
    "removed": Path.unlink,
}


@pytest.mark.parametrize("block", [1 << 12, 1 << 24])
@pytest.mark.parametrize("name", ["tokens", "ends", "record.json"])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_token_file_is_made_again(made, tmp_path, monkeypatch, capfd, damage, name, block):
    monkeypatch.setattr(token_record, "BLOCK_BYTES", block)
    token_record.write(made)
    before = contents(made)
    damage(made / name)
    capfd.readouterr()
    assert prepare(tmp_path) == made and contents(made) == before
    output = capfd.readouterr().out
    assert "tokenizes=" in output and "damaged=" in output and name in output
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [made.name]
    prepare(tmp_path)
    assert "tokenizes=" not in capfd.readouterr().out


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_the_ranks_of_a_node_check_every_block_together(made, monkeypatch, parts):
    monkeypatch.setattr(token_record, "BLOCK_BYTES", 1 << 12)
    token_record.write(made)
    blocks = token_record.blocks(made / "tokens")
    assert blocks > 7
    whole = (made / "tokens").read_bytes()
    for block in range(blocks):
        place = block << 12
        (made / "tokens").write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        found = [token_record.problem(made, part, parts) for part in range(parts)]
        assert sum(map(bool, found)) == 1 and str(place) in "".join(found)


def test_a_token_file_of_an_earlier_version_without_a_record_is_made_again(made, tmp_path):
    before = contents(made)
    (made / token_record.RECORD).unlink()
    assert contents(prepare(tmp_path)) == before


def test_every_user_can_read_a_token_file(made):
    assert made.stat().st_mode & 0o777 == 0o755
    assert {path.stat().st_mode & 0o777 for path in made.iterdir()} == {0o644}


def test_data_that_are_refused_leave_no_parts(tmp_path):
    (tmp_path / "data.jsonl").write_text('{"text": 1}\n')
    with pytest.raises(DataError):
        prepare(tmp_path)
    assert list((tmp_path / "cache").iterdir()) == []


def leftover(folder: Path, name: str, owner: str | None, age: float) -> Path:
    part = folder / f"tokens-1.part-{name}"
    part.mkdir(parents=True)
    (part / "tokens").write_bytes(b"")
    if owner is not None:
        (part / held_folder.LOCK).write_text(owner)
    for path in (*part.iterdir(), part):
        os.utime(path, (time.time() - age,) * 2)
    return part


def test_parts_of_owners_that_have_ended_are_removed_and_no_others(made, tmp_path):
    cache, old = tmp_path / "cache", 2 * held_folder.ABANDONED_S
    here = held_folder.place_of(cache)
    gone = [
        leftover(cache, "ended", here, 0),
        leftover(cache, "elsewhere-old", "another-node", old),
        leftover(cache, "earlier-old", None, old),
    ]
    kept = [leftover(cache, "elsewhere-new", "another-node", 0), leftover(cache, "begins", None, 0)]
    with held_folder.held_folder(cache / "tokens-1.part-lives") as lives:
        for path in (*lives.iterdir(), lives):
            os.utime(path, (time.time() - old,) * 2)
        prepare(tmp_path)
        assert lives.is_dir() and all(path.is_dir() for path in kept) and not any(path.exists() for path in gone)
    assert not lives.exists()


def test_on_a_volume_without_locks_only_old_parts_are_removed(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(held_folder.fcntl, "flock", unsupported)
    here = held_folder.place_of(tmp_path)
    parts = leftover(tmp_path, "new", here, 0), leftover(tmp_path, "old", here, 2 * held_folder.ABANDONED_S)
    held_folder.remove_abandoned(parts)
    assert [path.exists() for path in parts] == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stop_while_data_are_tokenized_leaves_no_parts(tmp_path, number):
    """SIGTERM removes them, and after a kill the next start does."""
    data, cache = tmp_path / "data.jsonl", tmp_path / "cache"
    data.write_text((json.dumps({"text": "word " * 2000}) + "\n") * 20_000)
    words = (*TINY, "--data", data, "--cache", cache, "--max-steps", 1)
    ranks = Ranks(LM, words, 2, tmp_path)
    until(lambda: len(list(cache.glob("tokens-*.part-*/tokens"))) == 2, "both ranks tokenize", 120)
    ranks.signal(number, [0, 1])
    assert set(ranks.wait()) == {143 if number == signal.SIGTERM else -9}
    if number == signal.SIGKILL:
        assert len(list(cache.iterdir())) == 2
        data.write_text('{"text": "few words"}\n' * 9)
        assert Ranks(LM, words, 0, tmp_path).wait() == [0]
    assert not [path for path in cache.iterdir() if "part" in path.name] if cache.exists() else True
    shutil.rmtree(cache, ignore_errors=True)
