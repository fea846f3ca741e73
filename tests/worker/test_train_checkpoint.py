"""A checkpoint is whole, or it is not there."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from gpuworker.train import checkpoint, upload
from gpuworker.train.checkpoint import MANIFEST, Store


def write(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(os.urandom(5000))
    (folder / "parts").mkdir()
    (folder / "parts" / "optimizer.pt").write_bytes(b"x" * 300)


def save(store: Store, step: int, name: str = "") -> Path:
    return store.save(name or f"epoch-0001-step-{step:08}", (step, 0), {"step": step}, write)


@pytest.fixture
def store(tmp_path) -> Store:
    made = Store(tmp_path / "run", keep=3)
    save(made, 5)
    save(made, 10)
    return made


def cut_manifest(folder: Path) -> None:
    path = folder / MANIFEST
    path.write_bytes(path.read_bytes()[:100])


def flip_byte(folder: Path) -> None:
    path = folder / "rank-0" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[2500] ^= 1
    path.write_bytes(data)


def zeros(folder: Path) -> None:
    """What a power cut leaves on some file systems: the length without the contents."""
    path = folder / "rank-0" / "parts" / "optimizer.pt"
    path.write_bytes(bytes(path.stat().st_size))


TORN = {
    "no manifest": (lambda folder: (folder / MANIFEST).unlink(), "it was never finished"),
    "empty manifest": (lambda folder: (folder / MANIFEST).write_text(""), "the manifest cannot be read"),
    "cut manifest": (cut_manifest, "the manifest cannot be read"),
    "other JSON": (lambda folder: (folder / MANIFEST).write_text("[]"), "the manifest cannot be read"),
    "other format": (
        lambda folder: (folder / MANIFEST).write_text('{"format": 9, "order": [10, 0], "files": {}}'),
        "format 9",
    ),
    "missing file": (lambda folder: (folder / "rank-0" / "model.safetensors").unlink(), "No such file"),
    "short file": (lambda folder: os.truncate(folder / "rank-0" / "model.safetensors", 4999), "4999 bytes, not 5000"),
    "flipped bit": (flip_byte, "other contents"),
    "zeros": (zeros, "other contents"),
    "no state": (lambda folder: (folder / "rank-0" / checkpoint.STATE).unlink(), "No such file"),
    "empty folder": (lambda folder: (shutil.rmtree(folder), folder.mkdir()), "it was never finished"),
}


@pytest.mark.parametrize("tear, why", TORN.values(), ids=TORN)
def test_torn_is_never_resumed(store, capfd, tear, why):
    """The one before it is, and the log says why."""
    assert store.newest().state == {"step": 10}
    tear(store.folder / "epoch-0001-step-00000010")
    found = Store(store.folder, keep=3).newest()
    assert found.state == {"step": 5}
    assert why in capfd.readouterr().out


def test_torn_is_named_when_nothing_else_is_there(tmp_path, capfd):
    store = Store(tmp_path / "run", keep=1)
    flip_byte(save(store, 1))
    assert store.newest() is None
    assert "checkpoint=epoch-0001-step-00000001 ignored=" in capfd.readouterr().out


def test_what_a_killed_save_leaves_is_removed(store):
    (store.folder / ".partial-epoch-0002-1234").mkdir()
    (store.folder / ".old-epoch-0001-1234").mkdir()
    Store(store.folder, keep=3)
    assert [path.name for path in store.folder.glob(".*")] == []


def test_a_full_disk_leaves_nothing_behind(store):
    def full(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        store.save("epoch-0001-step-00000015", (15, 0), {}, full)
    assert store.newest().state == {"step": 10}
    assert [path.name for path in store.folder.glob(".*")] == []


def test_what_is_set_aside_stays(store):
    """A run that begins anew neither resumes nor removes what an earlier one of its name has left."""
    store.set_aside()
    save(store, 1)
    store.retain()
    assert store.newest().state == {"step": 1}
    store.set_aside()
    kept = [Store(store.folder.with_name(f"run.before-{number}"), 9).newest().state["step"] for number in (1, 2)]
    assert kept == [10, 1] and store.newest() is None


def test_torn_one_of_the_same_name_is_replaced(store):
    flip_byte(store.folder / "epoch-0001-step-00000010")
    save(store, 10)
    assert store.newest().state == {"step": 10}


def test_manifest_is_written_last(tmp_path, monkeypatch):
    """When it is written, all other files are on the disk."""
    synced, seen = [], []
    real = checkpoint.to_disk

    def to_disk(path: Path) -> None:
        if path.name == MANIFEST:
            seen.extend(synced)
        synced.append(path.name)
        real(path)

    monkeypatch.setattr(checkpoint, "to_disk", to_disk)
    save(Store(tmp_path / "run", keep=1), 1)
    assert {"model.safetensors", "optimizer.pt", checkpoint.STATE, "rank-0", "parts"} <= set(seen)
    assert synced[-1] == "run"  # after the rename


def test_retention_keeps_the_newest_the_best_and_what_is_uploaded(tmp_path):
    store = Store(tmp_path / "run", keep=2, busy=lambda: {"epoch-0001-step-00000002"})
    for step in range(1, 7):
        save(store, step)
        if step == 3:
            store.point("best", "epoch-0001-step-00000003")
    store.retain()
    assert [int(path.name[-1]) for path in sorted(store.folder.glob("epoch-*"))] == [2, 3, 5, 6]


@pytest.mark.parametrize("links", [True, False])
def test_latest_and_best_are_links_or_files(tmp_path, monkeypatch, links):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    if not links:
        monkeypatch.setattr(os, "symlink", refuse)
    store = Store(tmp_path / "run", keep=1)
    save(store, 1)
    store.point("best", "epoch-0001-step-00000001")
    save(store, 2)
    store.retain()
    assert (store.folder / "latest").is_symlink() == links
    assert store.pointed("latest") == "epoch-0001-step-00000002"
    assert sorted(path.name for path in store.folder.glob("epoch-*"))[0] == store.pointed("best")


def test_manifest_can_be_checked_with_common_tools(store):
    import hashlib

    folder = store.folder / "epoch-0001-step-00000010"
    files = json.loads((folder / MANIFEST).read_text())["files"]
    assert len(files) == 3
    for name, entry in files.items():
        data = (folder / name).read_bytes()
        assert entry == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@pytest.mark.parametrize("text", ["s5cmd sync", "[]", '["a", 1]', '{"a": 1}'])
def test_upload_command_must_be_a_list_of_words(text):
    with pytest.raises(ValueError, match="JSON list"):
        upload.command_of(text)


def test_upload_that_hangs_is_given_up(tmp_path, capfd):
    uploader = upload.Uploader(["sleep", "1000"], "run")
    uploader.submit(tmp_path / "epoch-0001")
    uploader.finish(0.2)
    uploader.thread.join(10)
    assert not uploader.thread.is_alive()
    said = capfd.readouterr().out
    assert 'upload="given up" missing=epoch-0001' in said and "exit_code=-9" in said


def test_upload_command_that_does_not_exist_is_told(tmp_path, capfd):
    uploader = upload.Uploader(["/no/such/program", "secret"], "run")
    uploader.submit(tmp_path / "epoch-0001")
    uploader.finish(10)
    said = capfd.readouterr().out
    assert 'command=/no/such/program exit_code="No such file or directory"' in said and "secret" not in said
