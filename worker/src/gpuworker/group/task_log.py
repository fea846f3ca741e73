"""Copy of a task's output on a volume, with the time of each line. JobSet deletes the pods of ranks that still run."""

from __future__ import annotations

import datetime
import os
import threading
from pathlib import Path


class TaskLog:
    """Copies lines from a named pipe to `file`, as `TIME HOST LINE`, until it is closed."""

    def __init__(self, pipe: Path, file: Path, host: str):
        file.parent.mkdir(parents=True, exist_ok=True)
        self.host = host
        # Open for reading and writing: neither side waits for the other, and attempts are not separated by end of file.
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
        """Write everything that was printed before to the volume."""
        os.write(self.pipe.fileno(), b"\0")
        self.thread.join(5)
        os.fsync(self.file.fileno())
