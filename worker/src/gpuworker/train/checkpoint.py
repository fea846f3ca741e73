"""Checkpoints that are whole or do not exist.

  <run>/epoch-0002-step-00000150/rank-0/…    state that all ranks share, written by rank 0
  <run>/epoch-0002-step-00000150/manifest.json
  <run>/epoch-0002/                          the same at the end of an epoch, after its evaluation
  <run>/latest, <run>/best                   links to two of them, for people; resuming reads manifests only

A checkpoint is written into a hidden folder; every file is forced to disk, then the manifest with sizes and SHA-256 of
all files, then the folder gets its name. Ranks other than 0 have nothing of their own to save: parameters and optimizer
are alike, and random numbers are made anew in each step from seed, step and rank.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuworker.runtime.log import log

MANIFEST = "manifest.json"
FORMAT = 1
STATE = "trainer.json"
UNKNOWN = (-1, -1)  # order of a folder without a manifest


class TornError(ValueError):
    """Why a folder is no whole checkpoint."""


@dataclass(frozen=True)
class Checkpoint:
    folder: Path
    order: tuple[int, int]  # step, and whether the epoch's evaluation is in it
    state: dict

    @property
    def shared(self) -> Path:
        return self.folder / "rank-0"


class Store:
    """The checkpoints of one run; only rank 0 has one. `busy` names those that must stay for now."""

    def __init__(self, folder: Path, keep: int, busy: Callable[[], set[str]] = set):
        self.folder, self.keep, self.busy = folder, keep, busy
        folder.mkdir(parents=True, exist_ok=True)
        for left in [*folder.glob(".partial-*"), *folder.glob(".old-*")]:  # by an attempt that was killed
            shutil.rmtree(left, ignore_errors=True)

    def newest(self) -> Checkpoint | None:
        """The newest whole checkpoint; says of every other that was looked at why it is not taken."""
        folders = [(rank(each), each) for each in self.folder.glob("epoch-*")]
        # Those whose age nobody knows come first, to be told; none of them is whole.
        for _, folder in sorted(folders, key=lambda pair: (pair[0] == UNKNOWN, *pair), reverse=True):
            try:
                return read(folder)
            except TornError as error:
                log("TRAIN", checkpoint=folder.name, ignored=error)
        return None

    def set_aside(self) -> None:
        """Rename the run's folder, if it holds checkpoints, and begin with an empty one."""
        if any(self.folder.glob("epoch-*")):
            numbers = itertools.count(1)
            other = next(path for n in numbers if not (path := Path(f"{self.folder}.before-{n}")).exists())
            self.folder.rename(other)
            self.folder.mkdir()
            log("TRAIN", rank=0, set_aside=other.name)

    def save(self, name: str, order: tuple[int, int], state: dict, write: Callable[[Path], None]) -> Path:
        """Commit a checkpoint: `write` gets the folder for the shared files. An OSError leaves nothing behind."""
        final, partial = self.folder / name, self.folder / f".partial-{name}-{uuid.uuid4().hex[:8]}"
        try:
            (partial / "rank-0").mkdir(parents=True)
            write(partial / "rank-0")
            (partial / "rank-0" / STATE).write_text(json.dumps(state))
            files = {str(path.relative_to(partial)): path for path in sorted(partial.rglob("*")) if path.is_file()}
            listed = {key: {"size": path.stat().st_size, "sha256": digest(path)} for key, path in files.items()}
            for path in files.values():
                to_disk(path)
            for path in [partial / "rank-0", *(each for each in (partial / "rank-0").rglob("*") if each.is_dir())]:
                to_disk(path)
            manifest = {"format": FORMAT, "order": order, "files": listed}
            (partial / MANIFEST).write_text(json.dumps(manifest, indent=1))
            to_disk(partial / MANIFEST)
            to_disk(partial)
            if final.exists():  # torn, or it would have been resumed from
                self.remove(final)
            os.rename(partial, final)
            to_disk(self.folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        self.point("latest", name)
        return final

    def point(self, link: str, name: str) -> None:
        """Let `latest` or `best` mean a checkpoint: a link, or a file with its name where links do not work."""
        fresh = self.folder / f".{link}-{uuid.uuid4().hex[:8]}"
        try:
            os.symlink(name, fresh)
        except OSError:  # object stores and SMB have none
            fresh.write_text(name + "\n")
        os.replace(fresh, self.folder / link)

    def pointed(self, link: str) -> str:
        """What `point` has set; empty if nothing."""
        path = self.folder / link
        if path.is_symlink():
            return os.readlink(path)
        return path.read_text().strip() if path.is_file() else ""

    def retain(self) -> None:
        """Remove all but the `keep` newest, the best, and those in use."""
        kept = {self.pointed("best"), self.pointed("latest"), *self.busy()}
        for _, folder in sorted(((rank(each), each) for each in self.folder.glob("epoch-*")), reverse=True)[
            self.keep :
        ]:
            if folder.name not in kept:
                self.remove(folder)

    def remove(self, folder: Path) -> None:
        """It loses its name first, so that it is never seen with a part of its files."""
        old = self.folder / f".old-{folder.name}-{uuid.uuid4().hex[:8]}"
        with contextlib.suppress(OSError):
            os.rename(folder, old)
            shutil.rmtree(old)


def rank(folder: Path) -> tuple[int, int]:
    """Order of checkpoints by what their manifests say."""
    try:
        step, evaluated = json.loads((folder / MANIFEST).read_text())["order"]
        return int(step), int(evaluated)
    except (OSError, ValueError, KeyError, TypeError):
        return UNKNOWN


def read(folder: Path) -> Checkpoint:
    """A checkpoint whose every file is as its manifest says. Raises TornError."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        files, order = manifest["files"], tuple(manifest["order"])
        if manifest["format"] != FORMAT:
            raise TornError(f"format {manifest['format']}, this program reads {FORMAT}")
        expected = {name: (entry["size"], entry["sha256"]) for name, entry in files.items()}
    except FileNotFoundError:
        raise TornError("no manifest: it was never finished") from None
    except TornError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TornError(f"the manifest cannot be read: {error}") from None
    for name, (size, sha256) in expected.items():
        path = folder / name
        try:
            found = path.stat().st_size
            if found != size:
                raise TornError(f"{name} has {found} bytes, not {size}")
            if digest(path) != sha256:
                raise TornError(f"{name} has other contents than were written")
        except OSError as error:
            raise TornError(f"{name}: {error.strerror}") from None
    try:
        return Checkpoint(folder, order, json.loads((folder / "rank-0" / STATE).read_text()))
    except (OSError, ValueError) as error:
        raise TornError(f"rank-0/{STATE}: {error}") from None


def blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            yield block


def digest(path: Path) -> str:
    whole = hashlib.sha256()
    for block in blocks(path):
        whole.update(block)
    return whole.hexdigest()


def to_disk(path: Path) -> None:
    """A file's or folder's contents, so that no power cut can take them back."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
