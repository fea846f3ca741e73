"""The file between a training process and the process that sends: one JSON record a line, written at once.

A record is {"step", "time", "metrics"}, {"artifact": path} or {"end": status}. What the sender has delivered is a byte
offset in state.json, so that nothing is lost whichever of the two dies, and what is left can be kept and sent later.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

SPOOL, STATE, PLAN = "spool.jsonl", "state.json", "plan.json"
LIMIT = 1 << 30  # bytes: with a tracker that is down, some three million records


class Writer:
    """Appends records; never raises."""

    def __init__(self, folder: Path):
        # Unbuffered and whole lines: what was logged before a SIGKILL is in the file.
        self.file = os.open(folder / SPOOL, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.size = self.lost = 0
        self.why = ""  # of the first loss

    def write(self, record: dict) -> None:
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        if self.size + len(line) > LIMIT and "end" not in record:
            self.lost, self.why = self.lost + 1, self.why or f"{LIMIT >> 20} MiB wait to be sent"
            return
        try:
            os.write(self.file, line)
            self.size += len(line)
        except OSError as error:
            self.lost, self.why = self.lost + 1, self.why or str(error)

    def close(self) -> None:
        os.close(self.file)


def read(path: Path, offset: int, most: int = 500) -> tuple[list[dict], int]:
    """Up to `most` whole records from `offset`, and the offset behind them. A line that was cut short is skipped."""
    records: list[dict] = []
    with open(path, "rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n") or len(records) == most:
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


def keep(folder: Path, offset: int, target: Path) -> tuple[int, Path]:
    """Copy the plan and what was not delivered from `offset` on into a file under `target`: records kept, and where.

    Where `target` cannot be written, the file stays in `folder`.
    """
    plan = (folder / PLAN).read_text()
    name = f"unsent-{json.loads(plan)['tracker']}-rank-{json.loads(plan)['rank']}-{int(time.time())}.jsonl"
    rest, count, end = [], 0, offset
    while True:
        records, end = read(folder / SPOOL, end)
        if not records:
            break
        count += sum("end" not in record for record in records)
        rest += [json.dumps(record, separators=(",", ":")) + "\n" for record in records]
    for place in (target, folder):
        try:
            place.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(f'{{"plan":{plan}}}\n' + "".join(rest))
            return count, place / name
        except OSError:
            continue
    return count, folder / SPOOL
