"""Check that all nodes train the same: the same flags, the same data, the same tokenizer.

Ranks compute on shares of one list of samples. Nodes with different lists would train on wrong shares, or wait for
each other forever.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from gpuworker.train.distributed import DistributedContext, host_name

# Flags that may differ between nodes: places on a node, what only rank 0 does, and what does not change the training.
LOCAL_FLAGS = {
    "cache", "data", "device", "keep", "log_level", "model", "model_local_dir", "report_json", "resume",
    "save_every_minutes", "tokenizer_local_dir", "tracker_ranks", "tracker_required", "tracker_timeout", "upload",
    "upload_wait", "val",
}  # fmt: skip
BLOCKS, BLOCK_BYTES = 64, 1 << 16


class DisagreementError(ValueError):
    """Nodes would not train the same."""


def require_same(context: DistributedContext, what: str, facts: Mapping[str, object]) -> None:
    """Raise DisagreementError on all ranks unless these facts are the same on all of them. Collective."""
    found = context.all_gather_object((host_name(), dict(facts)))
    first_host, first = found[0]
    for rank, (host, other) in enumerate(found):
        if other != first:
            key = next(key for key in [*first, *other] if other.get(key) != first.get(key))
            raise DisagreementError(
                f"{what} differs between nodes: {key} is {first.get(key)} for rank 0 on {first_host}, "
                f"and {other.get(key)} for rank {rank} on {host}"
            )


def shared_flags(args: argparse.Namespace) -> dict[str, object]:
    flags = {f"--{name.replace('_', '-')}": value for name, value in vars(args).items() if name not in LOCAL_FLAGS}
    return {**flags, "RUN_ID": os.environ.get("RUN_ID", "")}


def file_fingerprint(path: Path) -> str:
    """Size and digest of a sample of a file's contents, in at most a few milliseconds; `no such file` for none."""
    if not path.is_file():
        return "no such file"
    size = path.stat().st_size
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for number in range(BLOCKS):
            file.seek(max(0, size - BLOCK_BYTES) * number // (BLOCKS - 1))
            digest.update(file.read(BLOCK_BYTES))
    return f"{size} bytes with digest {digest.hexdigest()[:16]}"


def files_fingerprint(files: list[Path]) -> str:
    """The fingerprint of a file, or one of all fingerprints; names do not matter, the order does."""
    found = [file_fingerprint(path) for path in files]
    if len(found) == 1:
        return found[0]
    return f"{len(found)} files with digest {hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]}"
