"""Files of a checkpoint: what makes it complete, and reading it from a volume that may fail.

The manifest has sizes and SHA-256 of all other files.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log

MANIFEST = "manifest.json"
FORMAT = 1
STATE = "trainer.json"
SHARED, SHARDS = "rank-0", "shards"  # folders: written by rank 0, and by all ranks of a sharded model
NAME = re.compile(r"epoch-\d{4,}(-step-\d{8,}(-evaluated)?)?")  # TrainState.checkpoint_name
HASHING_THREADS = 8
UNKNOWN_ORDER = (-1, -1)  # of a folder without a readable manifest
READ_TRIES, RETRY_S = 4, 2.0  # of a volume that fails for a while
ACCESS_ERRORS = (errno.EACCES, errno.EPERM)
WAY_OUT = "or start from the beginning with --resume never, which sets them aside, or under another runName (--run)"


class CorruptCheckpointError(ValueError):
    """A folder is not a complete checkpoint. The message contains the reason."""


class UnreadableCheckpointError(OSError):
    """A checkpoint may be complete, but the volume does not return its files."""


class ResumeError(ValueError):
    """The run's checkpoints cannot be resumed from, and must not be overwritten."""


@dataclass(frozen=True)
class Checkpoint:
    folder: Path
    order: tuple[int, int]  # step, and whether the epoch's evaluation is included
    state: dict


def checkpoints_in(run: Path) -> list[Path]:
    """Folders of a run that are its checkpoints. Others are the user's: copies, exports, notes."""
    return [each for each in run.glob("epoch-*") if NAME.fullmatch(each.name)]


def read_order(folder: Path) -> tuple[int, int]:
    """Order of a checkpoint, as its manifest records it."""
    try:
        step, evaluated = json.loads((folder / MANIFEST).read_text())["order"]
        return int(step), int(evaluated)
    except (OSError, ValueError, KeyError, TypeError):
        return UNKNOWN_ORDER


def load_patiently(folder: Path) -> Checkpoint:
    """`load`, tried again while the volume fails. Raises ResumeError for the files of another user."""
    for left in reversed(range(READ_TRIES)):
        try:
            return load(folder)
        except UnreadableCheckpointError as error:
            if error.errno in ACCESS_ERRORS:
                raise ResumeError(
                    f"{error}: this program runs as user {os.getuid()}; run it as the owner of the files, "
                    f"make them readable, {WAY_OUT}"
                ) from None
            if not left:
                raise
            log(Tag.TRAIN, checkpoint=folder.name, retrying=error)
            time.sleep(RETRY_S)
    raise AssertionError("unreachable")


def load(folder: Path) -> Checkpoint:
    """Checkpoint whose files all match the manifest. Raises CorruptCheckpointError or UnreadableCheckpointError."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        files, order = manifest["files"], tuple(manifest["order"])
        if manifest["format"] != FORMAT:
            raise CorruptCheckpointError(f"format {manifest['format']}; this program reads format {FORMAT}")
        expected = {name: (entry["size"], entry["sha256"]) for name, entry in files.items()}
    except FileNotFoundError:
        raise CorruptCheckpointError(f"no manifest: {MANIFEST} was removed, or not copied with the folder") from None
    except CorruptCheckpointError:
        raise
    except OSError as error:
        raise unreadable(folder / MANIFEST, error) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptCheckpointError(f"the manifest cannot be read: {error}") from None
    with ThreadPoolExecutor(HASHING_THREADS) as threads:
        for _ in threads.map(lambda name: verify(folder, name, *expected[name]), expected):
            pass
    try:
        return Checkpoint(folder, order, json.loads((folder / SHARED / STATE).read_text()))
    except FileNotFoundError as error:
        raise CorruptCheckpointError(f"{SHARED}/{STATE}: {error.strerror}") from None
    except OSError as error:
        raise unreadable(folder / SHARED / STATE, error) from None
    except ValueError as error:
        raise CorruptCheckpointError(f"{SHARED}/{STATE}: {error}") from None


def verify(folder: Path, name: str, size: int, sha256: str) -> None:
    path = folder / name
    try:
        found = path.stat().st_size
        if found != size:
            raise CorruptCheckpointError(f"{name} has {found} bytes, not {size}")
        if sha256_of(path) != sha256:
            raise CorruptCheckpointError(f"{name} does not match its SHA-256")
    except FileNotFoundError as error:
        raise CorruptCheckpointError(f"{name}: {error.strerror}") from None
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: OSError) -> UnreadableCheckpointError:
    return UnreadableCheckpointError(error.errno, error.strerror, str(path))


def make_readable(folder: Path) -> None:
    """Let every user read a checkpoint, because the next reader may have another user id."""
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def read_blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            yield block


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    for block in read_blocks(path):
        digest.update(block)
    return digest.hexdigest()


def sync_to_disk(path: Path) -> None:
    """Sync a file or folder, so that a power failure cannot undo it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
