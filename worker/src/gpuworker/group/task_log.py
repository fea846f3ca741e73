"""Keeps what a task prints on a volume, with the time of each line: JobSet deletes the pods of ranks that still ran."""

from __future__ import annotations

import datetime
import os
import threading
from pathlib import Path


class Journal:
    """Copies lines from a named pipe into `file`, as `TIME HOST LINE`, until it is closed."""

    def __init__(self, pipe: Path, file: Path, host: str):
        file.parent.mkdir(parents=True, exist_ok=True)
        self.host = host
        # Open for both, so that neither side ever waits for the other, and no end of file comes between two attempts.
        self.pipe = os.fdopen(os.open(pipe, os.O_RDWR), "rb", buffering=0)
        self.file = file.open("ab")
        self.thread = threading.Thread(target=self._copy, daemon=True)
        self.thread.start()

    def _copy(self) -> None:
        rest = b""
        while chunk := os.read(self.pipe.fileno(), 65536):
            *lines, rest = (rest + chunk).split(b"\n")
            end = b"\0" in rest  # close() writes it
            for line in [*lines, rest.rstrip(b"\0")] if end else lines:
                if line or not end:
                    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
                    self.file.write(f"{now} {self.host} ".encode() + line + b"\n")
            self.file.flush()
            if end:
                return

    def close(self) -> None:
        """Everything that was printed before is on the volume afterwards."""
        os.write(self.pipe.fileno(), b"\0")
        self.thread.join(5)
        os.fsync(self.file.fileno())
