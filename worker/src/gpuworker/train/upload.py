"""Upload of checkpoints: runs a user's command for each one in the background, one at a time."""

from __future__ import annotations

import json
import queue
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log

PLACEHOLDERS = ("path", "name", "run")
HELP = 'a JSON list, no shell: \'["s5cmd", "sync", "{path}/", "s3://bucket/{run}/{name}/"]\''


def parse_command(text: str) -> list[str]:
    """Argument list from a user's JSON. Raises ValueError."""
    try:
        words = json.loads(text)
    except ValueError:
        words = None
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise ValueError(f"not {HELP}")
    if shutil.which(words[0]) is None:
        raise ValueError(f"{words[0]}: no such program on the PATH of this image")
    for name in (name for word in words for name in re.findall(r"(?<!\$)\{([a-z]+)\}", word)):
        if name not in PLACEHOLDERS:
            raise ValueError(f"{{{name}}} is unknown; known are {', '.join(f'{{{each}}}' for each in PLACEHOLDERS)}")
    return words


class Uploader:
    """Background thread for uploads. `command` may contain {path}, {name} and {run}. Failures are logged only."""

    def __init__(self, command: list[str], run: str):
        self.command, self.run = command, run
        self.queue: queue.Queue[Path | None] = queue.Queue()
        self.pending: set[str] = set()
        self.process: subprocess.Popen | None = None
        self.thread = threading.Thread(target=self.upload_all, name="upload", daemon=True)
        self.thread.start()

    def submit(self, folder: Path) -> None:
        self.pending.add(folder.name)
        self.queue.put(folder)

    def in_use(self) -> set[str]:
        """Names of checkpoints that are not uploaded yet and must not be removed."""
        return set(self.pending)

    def upload_all(self) -> None:
        while folder := self.queue.get():
            started = time.monotonic()
            facts = dict(zip(PLACEHOLDERS, (str(folder), folder.name, self.run), strict=True))
            words = self.command
            for key, value in facts.items():
                words = [word.replace("{" + key + "}", value) for word in words]
            try:
                self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
                code: object = self.process.wait()
            except OSError as error:
                code = error.strerror
            # The arguments are not logged, because they may contain credentials.
            log(Tag.TRAIN, upload=folder.name, command=words[0], exit_code=code, seconds=time.monotonic() - started)
            self.pending.discard(folder.name)

    def finish(self, seconds: float) -> None:
        """Wait up to `seconds` for all uploads, then kill the current one and log what is missing."""
        self.queue.put(None)
        self.thread.join(seconds)
        if self.thread.is_alive():
            log(Tag.TRAIN, upload="given up", missing=",".join(sorted(self.pending)), seconds=seconds)
            if self.process:
                self.process.kill()
