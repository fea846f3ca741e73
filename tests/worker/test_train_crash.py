"""A crash of the node at any moment of a save: what was not synced is gone, and no checkpoint is
lost or half there.

The program records what each fsync puts on the disk. From that record the folder is made again as
it would be after a crash, once with all deletions undone that were not synced, and once with none
of them undone.
"""

import hashlib
import json
import os
from pathlib import Path

import pytest

from gpuworker.train import train
from gpuworker.train.callbacks import durable
from hack.paths import REPO
from tests.helpers.train_runs import LM, SMOKE, Ranks, language_model, text_file

RECORDED = str(REPO / "tests" / "launch_programs" / "recorded_saves.py")
SAVES = int(os.environ.get("CRASH_SAVES", 12))


class Disk:
    """What is on the disk: the content of files and the entries of folders, by inode."""

    def __init__(self, store: Path):
        self.store, self.content = store, {}

    def write(self, inode: int, kind: str, target: str, path: Path, live: set[int] | None):
        """Make it at the path. What was never synced is empty. `live`: leave out all other inodes."""
        known = self.content.get(inode, {})
        if kind == "folder":
            path.mkdir()
            for name, (child, kind_of_child, goal) in known.get("entries", {}).items():
                # A link is replaced by a rename, not deleted.
                if live is None or child in live or kind_of_child == "link":
                    self.write(child, kind_of_child, goal, path / name, live)
        elif kind == "link":
            path.symlink_to(target)
        elif "copy" in known:
            os.link(self.store / known["copy"], path)
        else:
            path.touch()


def digest(checkpoint: Path) -> str:
    files = sorted(each for each in checkpoint.rglob("*") if each.is_file())
    hashed = hashlib.sha256()
    for file in files:
        hashed.update(str(file.relative_to(checkpoint)).encode() + file.read_bytes())
    assert files
    return hashed.hexdigest()


def taken(module: str, run: Path) -> str | None:
    """Name of the checkpoint from which the next start goes on."""
    if module == SMOKE:
        return train.newest(run)[1]
    path = durable.newest(str(run))
    return Path(path).parent.name if path else None


@pytest.mark.parametrize(("module", "world"), [(SMOKE, 1), (SMOKE, 2), (LM, 1), (LM, 2)])
def test_no_crash_loses_a_checkpoint(tmp_path, monkeypatch, module, world):
    monkeypatch.delenv("RANK", raising=False)
    store, output = tmp_path / "store", tmp_path / "out"
    store.mkdir()
    output.mkdir()
    # 10 steps in an epoch
    flags: tuple = ("--features", 8, "--samples", 640, "--batch", 64 // world)
    if module == LM:
        flags = (*language_model(tmp_path), "--val", text_file(tmp_path), "--batch", 8)  # 17 steps
    epochs = ("--save-every", 1, "--epochs", -(-SAVES // 10))
    Ranks(
        RECORDED, output, *flags, *epochs, world=world, PROGRAM=module, EVENTS=store, RUN_ID="run"
    ).end()
    events = [json.loads(line) for line in (store / "events").read_text().splitlines()]
    names = [event["saved"] for event in events if "saved" in event]
    assert len(names) >= SAVES and len(set(names)) == len(names)
    disk, announced, seen, known = Disk(store), -1, 0, {}
    root = output.stat().st_ino
    for number, (event, after) in enumerate(zip(events, [*events[1:], events[-1]], strict=True)):
        if "saved" in event:
            announced += 1
        else:
            disk.content[event["inode"]] = event
        for kind, live in (("undone", None), ("deleted", set(after["live"]))):
            folder = tmp_path / f"{number}-{kind}"
            disk.write(root, "folder", "", folder, live)
            if announced < 0 and not (folder / "run").exists():
                continue
            found = taken(module, folder / "run")
            where = names.index(found) if found else -1
            assert where >= announced, (number, kind, found, names[announced])
            if found:
                seen += 1
                value = digest(folder / "run" / found)
                assert known.setdefault(found, value) == value, "the same content at each moment"
            best = folder / "run" / "best"
            assert best.exists() or not best.is_symlink(), (number, kind, os.readlink(best))
    last = output / "run" / names[-1]
    assert seen >= len(events) and known[names[-1]] == digest(last)
