"""Checkpoints are complete or absent; retention; uploads."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from gpuworker.train import checkpoint, checkpoint_files, upload
from gpuworker.train.checkpoint import Checkpointer
from gpuworker.train.checkpoint_files import MANIFEST


def write(folder: Path) -> None:
    folder = folder / "rank-0"
    (folder / "model.safetensors").write_bytes(os.urandom(5000))
    (folder / "parts").mkdir()
    (folder / "parts" / "optimizer.pt").write_bytes(b"x" * 300)


def save(checkpointer: Checkpointer, step: int, name: str = "", write=write) -> Path:
    name = name or f"epoch-0001-step-{step:08}"
    partial = checkpointer.begin(name)
    write(partial)
    return checkpointer.commit(partial, name, (step, 0), {"step": step})


@pytest.fixture
def checkpointer(tmp_path) -> Checkpointer:
    return make_checkpointer(tmp_path / "run")


def make_checkpointer(folder: Path) -> Checkpointer:
    made = Checkpointer(folder, keep=3)
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
    """What a power failure leaves on some file systems: the length without the contents."""
    path = folder / "rank-0" / "parts" / "optimizer.pt"
    path.write_bytes(bytes(path.stat().st_size))


CORRUPTIONS = {
    "no manifest": (lambda folder: (folder / MANIFEST).unlink(), "no manifest"),
    "empty manifest": (lambda folder: (folder / MANIFEST).write_text(""), "manifest cannot be read"),
    "cut manifest": (cut_manifest, "manifest cannot be read"),
    "other JSON": (lambda folder: (folder / MANIFEST).write_text("[]"), "manifest cannot be read"),
    "other format": (
        lambda folder: (folder / MANIFEST).write_text('{"format": 9, "order": [10, 0], "files": {}}'),
        "format 9",
    ),
    "missing file": (lambda folder: (folder / "rank-0" / "model.safetensors").unlink(), "No such file"),
    "short file": (lambda folder: os.truncate(folder / "rank-0" / "model.safetensors", 4999), "4999 bytes, not 5000"),
    "flipped bit": (flip_byte, "SHA-256"),
    "zeros": (zeros, "SHA-256"),
    "no state": (lambda folder: (folder / "rank-0" / checkpoint_files.STATE).unlink(), "No such file"),
    "empty folder": (lambda folder: (shutil.rmtree(folder), folder.mkdir()), "no manifest"),
}


@pytest.mark.parametrize("corrupt, reason", CORRUPTIONS.values(), ids=CORRUPTIONS)
def test_a_corrupt_checkpoint_is_skipped_for_the_one_before_it_and_the_log_has_the_reason(
    checkpointer, capfd, corrupt, reason
):
    assert checkpointer.load_newest().state == {"step": 10}
    corrupt(checkpointer.folder / "epoch-0001-step-00000010")
    found = Checkpointer(checkpointer.folder, keep=3).load_newest()
    assert found.state == {"step": 5}
    assert reason in capfd.readouterr().out


@pytest.mark.parametrize("corrupt", [corrupt for corrupt, _ in CORRUPTIONS.values()], ids=CORRUPTIONS)
def test_a_run_whose_checkpoints_are_all_corrupt_is_refused_and_nothing_is_overwritten(checkpointer, capfd, corrupt):
    folders = sorted(checkpointer.folder.glob("epoch-*"))
    for folder in folders:
        corrupt(folder)
    with pytest.raises(checkpoint_files.ResumeError, match="--resume never"):
        checkpointer.load_newest()
    assert capfd.readouterr().out.count("ignored=") == 2 and sorted(checkpointer.folder.glob("epoch-*")) == folders


def unreadable(path: Path) -> None:
    """A link to itself: it cannot be read by any user, root included."""
    path.unlink()
    path.symlink_to(path.name)


@pytest.mark.parametrize("name", [MANIFEST, "rank-0/model.safetensors", f"rank-0/{checkpoint_files.STATE}"])
def test_a_checkpoint_that_cannot_be_read_is_not_taken_for_a_corrupt_one(checkpointer, name):
    unreadable(checkpointer.folder / "epoch-0001-step-00000010" / name)
    with pytest.raises(checkpoint_files.UnreadableCheckpointError, match=Path(name).name):
        checkpointer.load_newest()


@pytest.mark.parametrize("number, error", [(13, checkpoint_files.ResumeError), (5, OSError), (116, OSError)])
def test_files_of_another_user_are_a_usage_error_and_faults_of_the_volume_are_tried_again(
    checkpointer, monkeypatch, number, error
):
    tries = []

    def fail(path: Path):
        tries.append(path)
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(checkpoint_files, "read_blocks", fail)
    monkeypatch.setattr(checkpoint_files, "RETRY_S", 0.0)
    with pytest.raises(error, match=os.strerror(number)):
        checkpointer.load_newest()
    assert max(Counter(tries).values()) == (1 if number == 13 else checkpoint_files.READ_TRIES)


def test_a_fault_of_the_volume_that_passes_is_survived(checkpointer, monkeypatch):
    real, faults = checkpoint_files.read_blocks, iter([OSError(116, "Stale file handle")])

    def fail_once(path: Path):
        if fault := next(faults, None):
            raise fault
        return real(path)

    monkeypatch.setattr(checkpoint_files, "read_blocks", fail_once)
    monkeypatch.setattr(checkpoint_files, "RETRY_S", 0.0)
    assert checkpointer.load_newest().state == {"step": 10}


def test_every_user_can_read_a_checkpoint(tmp_path):
    def write_privately(folder: Path) -> None:
        write(folder)
        (folder / "rank-0" / "model.safetensors").chmod(0o600)  # as safetensors creates it
        (folder / "rank-0" / "parts").chmod(0o700)

    made = save(Checkpointer(tmp_path / "run", keep=1), 1, write=write_privately)
    for path in [made, *made.rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path


def test_leftovers_of_a_killed_save_are_removed(checkpointer):
    (checkpointer.folder / ".partial-epoch-0002-1234").mkdir()
    (checkpointer.folder / ".old-epoch-0001-1234").mkdir()
    Checkpointer(checkpointer.folder, keep=3)
    assert [path.name for path in checkpointer.folder.glob(".*")] == []


def test_a_run_that_starts_over_neither_resumes_nor_removes_an_earlier_run_of_its_name(checkpointer):
    checkpointer.set_aside()
    save(checkpointer, 1)
    checkpointer.remove_old()
    assert checkpointer.load_newest().state == {"step": 1}
    checkpointer.set_aside()
    kept = [
        Checkpointer(checkpointer.folder.with_name(f"run.before-{number}"), 9).load_newest().state["step"]
        for number in (1, 2)
    ]
    assert kept == [10, 1] and checkpointer.load_newest() is None


def test_a_corrupt_checkpoint_of_the_same_name_is_replaced(checkpointer):
    flip_byte(checkpointer.folder / "epoch-0001-step-00000010")
    save(checkpointer, 10)
    assert checkpointer.load_newest().state == {"step": 10}


def test_the_manifest_is_synced_after_all_other_files(tmp_path, monkeypatch):
    synced, seen = [], []
    real = checkpoint_files.sync_to_disk

    def sync_to_disk(path: Path) -> None:
        if path.name == MANIFEST:
            seen.extend(synced)
        synced.append(path.name)
        real(path)

    monkeypatch.setattr(checkpoint, "sync_to_disk", sync_to_disk)
    save(Checkpointer(tmp_path / "run", keep=1), 1)
    assert {"model.safetensors", "optimizer.pt", checkpoint_files.STATE, "rank-0", "parts"} <= set(seen)
    assert synced[-1] == "run"  # after the rename


def test_retention_keeps_the_newest_the_best_and_those_being_uploaded(tmp_path):
    checkpointer = Checkpointer(tmp_path / "run", keep=2, in_use=lambda: {"epoch-0001-step-00000002"})
    for step in range(1, 7):
        save(checkpointer, step)
        if step == 3:
            checkpointer.link("best", "epoch-0001-step-00000003")
    checkpointer.remove_old()
    assert [int(path.name[-1]) for path in sorted(checkpointer.folder.glob("epoch-*"))] == [2, 3, 5, 6]


@pytest.mark.parametrize("links", [True, False])
def test_latest_and_best_are_links_or_files_where_links_fail(tmp_path, monkeypatch, links):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    if not links:
        monkeypatch.setattr(os, "symlink", refuse)
    checkpointer = Checkpointer(tmp_path / "run", keep=1)
    save(checkpointer, 1)
    checkpointer.link("best", "epoch-0001-step-00000001")
    save(checkpointer, 2)
    checkpointer.remove_old()
    assert (checkpointer.folder / "latest").is_symlink() == links
    assert checkpointer.linked_name("latest") == "epoch-0001-step-00000002"
    assert sorted(path.name for path in checkpointer.folder.glob("epoch-*"))[0] == checkpointer.linked_name("best")


@pytest.mark.parametrize("link", ["latest", "best"])
def test_a_run_that_was_copied_with_links_followed_goes_on(tmp_path, capfd, link):
    made = make_checkpointer(tmp_path / "run")
    made.link("best", "epoch-0001-step-00000005")
    shutil.copytree(tmp_path / "run", tmp_path / "copy", symlinks=False)
    copy = Checkpointer(tmp_path / "copy", keep=9)
    save(copy, 15)
    copy.link("best", "epoch-0001-step-00000015")
    assert (copy.folder / link).is_symlink() and copy.linked_name(link) == "epoch-0001-step-00000015"
    assert len(list(copy.folder.iterdir())) == 3 + 2 and "warning=" not in capfd.readouterr().out
    assert made.linked_name("latest") == "epoch-0001-step-00000010"


def test_a_folder_in_place_of_a_link_that_no_checkpoint_equals_is_kept(checkpointer):
    (checkpointer.folder / "latest").unlink()
    (checkpointer.folder / "epoch-0001-step-00000010").rename(checkpointer.folder / "latest")
    save(checkpointer, 15)
    (kept,) = checkpointer.folder.glob("latest.before-*")
    assert (kept / MANIFEST).is_file() and checkpointer.linked_name("latest") == "epoch-0001-step-00000015"


def test_a_link_that_cannot_be_made_does_not_fail_the_save(checkpointer, monkeypatch, capfd):
    def refuse(source, target):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", refuse)
    final = save(checkpointer, 15)
    assert checkpointer.load_newest().folder == final
    assert "latest does not point to epoch-0001-step-00000015" in capfd.readouterr().out


def test_the_manifest_lists_sizes_and_sha256_of_all_files(checkpointer):
    import hashlib

    folder = checkpointer.folder / "epoch-0001-step-00000010"
    files = json.loads((folder / MANIFEST).read_text())["files"]
    assert len(files) == 3
    for name, entry in files.items():
        data = (folder / name).read_bytes()
        assert entry == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@pytest.mark.parametrize("text", ["s5cmd sync", "[]", '["a", 1]', '{"a": 1}'])
def test_an_upload_command_must_be_a_json_list_of_strings(text):
    with pytest.raises(ValueError, match="JSON list"):
        upload.parse_command(text)


def test_an_upload_that_hangs_is_killed_and_logged(tmp_path, capfd):
    uploader = upload.Uploader(["sleep", "1000"], "run")
    uploader.submit(tmp_path / "epoch-0001")
    uploader.finish(0.2)
    uploader.thread.join(10)
    assert not uploader.thread.is_alive()
    output = capfd.readouterr().out
    assert 'upload="given up" missing=epoch-0001' in output and "exit_code=-9" in output


def test_a_failing_upload_is_logged_without_its_arguments(tmp_path, capfd):
    uploader = upload.Uploader(["/no/such/program", "secret"], "run")
    uploader.submit(tmp_path / "epoch-0001")
    uploader.finish(10)
    output = capfd.readouterr().out
    assert 'command=/no/such/program exit_code="No such file or directory"' in output and "secret" not in output
