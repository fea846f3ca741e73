"""Spool file between a training process and its sender process: one JSON record per line, written immediately.

A record is {"step", "time", "metrics"}, {"artifact": path} or {"end": status}. state.json holds the byte offset up to
which the sender has delivered. So no record is lost if either process dies, and the rest can be saved and sent later.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

SPOOL, STATE, CONFIG = "spool.jsonl", "state.json", "config.json"
CLIENT_LOG = "client.log"  # what the client prints, which may contain credentials
LIMIT = 1 << 30  # bytes: some three million records while a tracker is down


class SpoolWriter:
    """Appends records; never raises."""

    def __init__(self, folder: Path):
        # Unbuffered and whole lines: what was logged before a SIGKILL is in the file.
        self.file = os.open(folder / SPOOL, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.size = self.lost = 0
        self.why = ""  # of the first loss

    def write(self, record: dict) -> None:
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        if self.size + len(line) > LIMIT and "end" not in record:
            self.lost, self.why = self.lost + 1, self.why or f"{LIMIT >> 20} MiB are waiting to be sent"
            return
        try:
            os.write(self.file, line)
            self.size += len(line)
        except OSError as error:
            self.lost, self.why = self.lost + 1, self.why or str(error)

    def close(self) -> None:
        os.close(self.file)


def read_records(path: Path, offset: int, limit: int = 500) -> tuple[list[dict], int]:
    """Up to `limit` complete records from `offset`, and the offset after them. Skips a line that was cut off."""
    records: list[dict] = []
    with open(path, "rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n") or len(records) == limit:
                break
            offset += len(line)
            try:
                records.append(json.loads(line))
            except ValueError:
                continue
    return records, offset


def save_state(folder: Path, state: dict) -> None:
    scratch = folder / (STATE + ".new")
    scratch.write_text(json.dumps(state))
    scratch.replace(folder / STATE)


def load_state(folder: Path) -> dict:
    try:
        return json.loads((folder / STATE).read_text())
    except OSError:
        return {}


def save_unsent(folder: Path, offset: int, target: Path, first: Sequence[dict] = ()) -> tuple[int, Path]:
    """Copy the configuration and the unsent records to a file in `target`, or in `folder` if that fails.

    The unsent records are those in `first`, and those of the spool from `offset` on.

    Returns the number of records and the file.
    """
    text = (folder / CONFIG).read_text()
    config = json.loads(text)
    name = f"unsent-{config['tracker']}-rank-{config['rank']}-{int(time.time())}.jsonl"
    lines = [json.dumps(record, separators=(",", ":")) + "\n" for record in first]
    count, end = len(lines), offset
    while True:
        records, end = read_records(folder / SPOOL, end)
        if not records:
            break
        count += sum("end" not in record for record in records)
        lines += [json.dumps(record, separators=(",", ":")) + "\n" for record in records]
    for parent in (target, folder):
        if parent == folder:
            (folder / CLIENT_LOG).unlink(missing_ok=True)  # this folder stays
        try:
            parent.mkdir(parents=True, exist_ok=True)
            (parent / name).write_text(f'{{"config":{text}}}\n' + "".join(lines))
            return count, parent / name
        except OSError:
            continue
    return count, folder / SPOOL
