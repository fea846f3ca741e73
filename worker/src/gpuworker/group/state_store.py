"""Copies of a group's state that survive a restart: in a folder of the pod, and on the volume of
the logs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable
from pathlib import Path

from gpuworker.group.group_state import GroupState
from gpuworker.group.protocol import CODEC
from gpuworker.runtime.json_lines import LINE_LIMIT, encode
from gpuworker.runtime.log import log
from gpuworker.runtime.plain_files import NotPlainError, read_plain, replace_plain

RETRY_S = 5.0


class StateFolder:
    """One file per rank. Raises OSError."""

    def __init__(self, folder: Path, host: str):
        self.folder, self.host = folder, host

    def load(self) -> list[GroupState]:
        """The states of all ranks."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return [state for file in self.folder.glob("*.json") for state in _state_in(file)]

    def load_own(self) -> list[GroupState]:
        return _state_in(self._own)

    def save(self, state: GroupState) -> None:
        replace_plain(self._own, encode(state))

    @property
    def _own(self) -> Path:
        return self.folder / f"{self.host}.json"


def _state_in(file: Path) -> list[GroupState]:
    """Nothing for what is not a file, or may not be read: others write there, too."""
    with contextlib.suppress(FileNotFoundError, PermissionError, NotPlainError):
        state = CODEC.decode(read_plain(file, LINE_LIMIT))
        return [state] if isinstance(state, GroupState) else []
    return []


class VolumeStore:
    """A StateFolder that may fail or hang, so it has a thread of its own, which tries until it
    succeeds.
    """

    def __init__(self, folder: Path, host: str, loaded: Callable[[GroupState], object]):
        self.store, self.loaded = StateFolder(folder, host), loaded
        self.newest: GroupState | None = None
        self.stop = False
        self.wake = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def save(self, state: GroupState) -> None:
        self.newest = dataclasses.replace(state)  # merge() replaces the lists
        self.wake.set()

    def close(self, timeout_s: float = 5) -> None:
        """Save what save() was called with, and end."""
        self.stop = True
        self.wake.set()
        self.thread.join(timeout_s)

    def _run(self) -> None:
        for state in self._until_done(self.store.load) or []:
            with contextlib.suppress(RuntimeError):  # the agent ends
                self.loaded(state)
        while not self.stop:
            self.wake.wait()
            self.wake.clear()
            if state := self.newest:
                self._until_done(functools.partial(self.store.save, state))

    def _until_done(self, call: Callable[[], object]) -> object:
        failed = False
        while True:
            try:
                return self.on_volume(call)
            except OSError as error:
                if not failed:
                    log(
                        "GROUP",
                        rank=self.store.host,
                        state_store=self.store.folder,
                        error=error.strerror or error,
                    )
                if self.stop:
                    return None
                failed = True
                self.wake.wait(RETRY_S)

    @staticmethod
    def on_volume(call: Callable[[], object]) -> object:
        return call()
