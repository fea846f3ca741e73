"""Runs a user's command for every checkpoint once it is whole, beside the training and one at a time."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from pathlib import Path

from gpuworker.runtime.log import log

HELP = 'a JSON list, no shell: \'["s5cmd", "sync", "{path}/", "s3://bucket/{run}/{name}/"]\''


def command_of(text: str) -> list[str]:
    """The argument list that a user gave. Raises ValueError."""
    try:
        words = json.loads(text)
    except ValueError:
        words = None
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise ValueError(f"not {HELP}")
    return words


class Uploader:
    """`command` may hold {path}, {name} and {run}. A command that fails is told in the log and stops nothing."""

    def __init__(self, command: list[str], run: str):
        self.command, self.run = command, run
        self.waiting: queue.Queue[Path | None] = queue.Queue()
        self.pending: set[str] = set()
        self.process: subprocess.Popen | None = None
        self.thread = threading.Thread(target=self.work, name="upload", daemon=True)
        self.thread.start()

    def submit(self, folder: Path) -> None:
        self.pending.add(folder.name)
        self.waiting.put(folder)

    def busy(self) -> set[str]:
        """Names of checkpoints that are not yet uploaded: they must not be removed."""
        return set(self.pending)

    def work(self) -> None:
        while folder := self.waiting.get():
            start = time.monotonic()
            facts = {"path": str(folder), "name": folder.name, "run": self.run}
            words = self.command
            for key, value in facts.items():
                words = [word.replace("{" + key + "}", value) for word in words]
            try:
                self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
                code: object = self.process.wait()
            except OSError as error:
                code = error.strerror
            # Not the arguments: they may hold what is nobody's business.
            log("TRAIN", upload=folder.name, command=words[0], exit_code=code, seconds=time.monotonic() - start)
            self.pending.discard(folder.name)

    def finish(self, seconds: float) -> None:
        """Wait for what is under way and waiting, so long at most; then give up and say so."""
        self.waiting.put(None)
        self.thread.join(seconds)
        if self.thread.is_alive():
            log("TRAIN", upload="given up", missing=",".join(sorted(self.pending)), seconds=seconds)
            if self.process:
                self.process.kill()
