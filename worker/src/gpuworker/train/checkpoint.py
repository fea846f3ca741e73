"""Atomic checkpoints: complete, or absent.

  <run>/epoch-0002-step-00000150/rank-0/…    state that all ranks share, written by rank 0
  <run>/epoch-0002-step-00000150/shards/…    of a sharded model: parts of weights and optimizer, written by all ranks
  <run>/epoch-0002-step-00000150/manifest.json
  <run>/epoch-0002/                          the same at the end of an epoch, after its evaluation
  <run>/latest, <run>/best                   links for users; resuming reads manifests only

A checkpoint is written into a hidden folder. Every file is synced to disk, then the manifest with sizes and SHA-256 of
all files, then the folder is renamed. Random numbers are not state: they are derived in each step from seed, step and
rank.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log
from gpuworker.train.checkpoint_files import (
    FORMAT,
    HASHING_THREADS,
    MANIFEST,
    SHARED,
    STATE,
    UNKNOWN_ORDER,
    WAY_OUT,
    Checkpoint,
    CorruptCheckpointError,
    ResumeError,
    checkpoints_in,
    load_patiently,
    make_readable,
    read_order,
    sha256_of,
    sync_to_disk,
)


class Checkpointer:
    """Checkpoints of one run on disk, for rank 0 only. `in_use` returns names that must not be removed yet."""

    def __init__(self, folder: Path, keep: int, in_use: Callable[[], set[str]] = set):
        self.folder, self.keep, self.in_use = folder, keep, in_use
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in [*folder.glob(".partial-*"), *folder.glob(".old-*")]:  # of a killed attempt
            shutil.rmtree(leftover, ignore_errors=True)

    def load_newest(self) -> Checkpoint | None:
        """Newest complete checkpoint. Logs the reason for every newer one that it skips.

        Raises ResumeError or UnreadableCheckpointError if there are checkpoints and none can be used: training from the
        beginning would overwrite them.
        """
        corrupt = 0
        folders = [(read_order(each), each) for each in checkpoints_in(self.folder)]
        # Folders of unknown order are read first so that they are logged. None of them is complete.
        for _, folder in sorted(folders, key=lambda pair: (pair[0] == UNKNOWN_ORDER, *pair), reverse=True):
            try:
                return load_patiently(folder)
            except CorruptCheckpointError as error:
                log(Tag.TRAIN, checkpoint=folder.name, ignored=error)
                corrupt += 1
        if corrupt:
            raise ResumeError(f"{self.folder}: all {corrupt} checkpoints are corrupt; restore one, {WAY_OUT}")
        return None

    def set_aside(self) -> None:
        """Rename the run's folder if it holds checkpoints, and create an empty one."""
        if checkpoints_in(self.folder):
            numbers = itertools.count(1)
            other = next(path for n in numbers if not (path := Path(f"{self.folder}.before-{n}")).exists())
            self.folder.rename(other)
            self.folder.mkdir()
            log(Tag.TRAIN, rank=0, set_aside=other.name)

    def set_aside_after(self, step: int) -> list[str]:
        """Rename the checkpoints after this step, so that none is resumed, and point the links to older ones."""
        orders = {folder: read_order(folder) for folder in checkpoints_in(self.folder)}
        bad = [folder for folder, order in orders.items() if order[0] > step]
        for folder in bad:
            self.rename(folder, "not-finite")
        left = sorted((order, folder.name) for folder, order in orders.items() if folder not in bad)
        for link in ("latest", "best"):
            if bad and self.linked_name(link) in {folder.name for folder in bad}:
                (self.folder / link).unlink()
                if left:
                    self.link(link, left[-1][1])
        return [folder.name for folder in bad]

    def begin(self, name: str) -> Path:
        """Hidden folder for the files of a new checkpoint. It ends with `commit` or with `discard`."""
        partial = self.folder / f".partial-{name}-{uuid.uuid4().hex[:8]}"
        try:
            (partial / SHARED).mkdir(parents=True)
        except OSError:
            self.discard(partial)
            raise
        return partial

    def discard(self, partial: Path) -> None:
        shutil.rmtree(partial, ignore_errors=True)

    def commit(self, partial: Path, name: str, order: tuple[int, int], state: dict) -> Path:
        """Turn the folder of `begin`, with all files written, into a checkpoint."""
        final = self.folder / name
        (partial / SHARED / STATE).write_text(json.dumps(state))
        make_readable(partial)
        files = {str(path.relative_to(partial)): path for path in sorted(partial.rglob("*")) if path.is_file()}
        with ThreadPoolExecutor(HASHING_THREADS) as threads:
            digests = threads.map(sha256_of, files.values())
            sizes = (path.stat().st_size for path in files.values())
            listed = {
                name: {"size": size, "sha256": digest} for name, size, digest in zip(files, sizes, digests, strict=True)
            }
        for path in files.values():
            sync_to_disk(path)
        for path in [each for each in partial.rglob("*") if each.is_dir()]:
            sync_to_disk(path)
        manifest = {"format": FORMAT, "order": order, "files": listed}
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=1))
        (partial / MANIFEST).chmod(0o644)
        sync_to_disk(partial / MANIFEST)
        sync_to_disk(partial)
        if final.exists():  # corrupt, or it would have been resumed
            self.remove(final)
        os.rename(partial, final)
        sync_to_disk(self.folder)
        self.link("latest", name)
        return final

    def rename(self, folder: Path, why: str) -> str:
        """Keep a checkpoint, but not as one of the run's. Returns its new name."""
        return folder.rename(self.folder / f"{why}-{folder.name}-{uuid.uuid4().hex[:8]}").name

    def resume_from(self, found: Checkpoint) -> None:
        """Set newer checkpoints aside, which are damaged, and repair the links: a kill may have come before them.

        The weights of a damaged checkpoint may be whole, and the run would save over its name.
        """
        for folder in checkpoints_in(self.folder):
            order = read_order(folder)
            if order == UNKNOWN_ORDER or (order, folder) > (found.order, found.folder):
                log(Tag.TRAIN, rank=0, checkpoint=folder.name, set_aside=self.rename(folder, "damaged"))
        for link in ("latest", "best") if found.state.get("best") else ("latest",):
            if self.linked_name(link) != found.folder.name:
                self.link(link, found.folder.name)

    def link(self, link: str, name: str) -> None:
        """Point `latest` or `best` to a checkpoint: a symbolic link, or a file with the name where links fail.

        A failure is logged only, because the checkpoint is complete, and the next start needs no links.
        """
        path, fresh = self.folder / link, self.folder / f".{link}-{uuid.uuid4().hex[:8]}"
        try:
            self.remove_copy(path)
            try:
                os.symlink(name, fresh)
            except OSError:  # object stores and SMB have no links
                fresh.write_text(name + "\n")
            os.replace(fresh, path)
        except OSError as error:
            log(Tag.TRAIN, rank=0, warning=f"{link} does not point to {name}: {error}")

    def remove_copy(self, path: Path) -> None:
        """Remove a folder in place of a link, which a copy that followed links has made.

        It is renamed if it may be the only copy of its checkpoint.
        """
        if path.is_dir() and not path.is_symlink():
            order = read_order(path)
            if order != UNKNOWN_ORDER and order in map(read_order, checkpoints_in(self.folder)):
                self.remove(path)
            else:
                path.rename(path.with_name(f"{path.name}.before-{uuid.uuid4().hex[:8]}"))

    def linked_name(self, link: str) -> str:
        """Name of the checkpoint that a link points to, or an empty string."""
        path = self.folder / link
        if path.is_symlink():
            return os.readlink(path)
        return path.read_text().strip() if path.is_file() else ""

    def remove_old(self) -> None:
        """Remove all but the `keep` newest, the best, and those in use."""
        kept = {self.linked_name("best"), self.linked_name("latest"), *self.in_use()}
        folders = sorted(((read_order(each), each) for each in checkpoints_in(self.folder)), reverse=True)
        for _, folder in folders[self.keep :]:
            if folder.name not in kept:
                self.remove(folder)

    def remove(self, folder: Path) -> None:
        """Rename the folder before deleting it, so that a reader never sees some of its files missing."""
        if folder.is_symlink():
            folder.unlink()
            return
        old = self.folder / f".old-{folder.name}-{uuid.uuid4().hex[:8]}"
        with contextlib.suppress(OSError):
            os.rename(folder, old)
            shutil.rmtree(old)
