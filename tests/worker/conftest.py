"""Fixtures that start the worker's programs as a pod does, and kill them after the test."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.group_agents import Group
from tests.helpers.processes import PATIENCE_S, descendants, environment

# Before torch is imported: its threads would compete with those of parallel tests.
os.environ["OMP_NUM_THREADS"] = "1"


class Started:
    """A running program. Its output goes to files, because a process that it leaves would keep a
    pipe open.
    """

    def __init__(self, arguments: tuple[object, ...], folder: Path, env: dict[str, str]) -> None:
        self.stdout, self.stderr = folder / "stdout", folder / "stderr"
        with self.stdout.open("w") as out, self.stderr.open("w") as err:
            command = [sys.executable, *map(str, arguments)]
            self.process = subprocess.Popen(command, stdout=out, stderr=err, env=env)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        return self.process.wait(timeout_s)

    @property
    def output(self) -> str:
        return self.stdout.read_text(errors="replace") + self.stderr.read_text(errors="replace")


@pytest.fixture
def start(tmp_path_factory):
    """start("-m", MODULE, …, NAME=value) runs Python with arguments and variables."""
    programs: list[Started] = []
    folders: list[Path] = []

    def begin(*arguments: object, **variables: object) -> Started:
        folders.append(tmp_path_factory.mktemp("program"))
        programs.append(Started(arguments, folders[-1], environment(**variables)))
        return programs[-1]

    yield begin
    for program in programs:
        if program.process.poll() is None:
            for pid in [*descendants(program.process.pid), program.process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            program.process.wait()
    for folder in folders:
        shutil.rmtree(folder)  # thousands of generated launches print hundreds of megabytes each


@pytest.fixture
def group(tmp_path) -> Iterator[Group]:
    """A group of processes, all of which end with the test."""
    group = Group(tmp_path)
    yield group
    for rank in group.ranks:
        rank.lose()


@pytest.fixture
def termination_log(tmp_path, monkeypatch) -> Path:
    """The file of a container's termination message; Kubernetes creates it before the container."""
    path = tmp_path / "termination-log"
    path.touch()
    monkeypatch.setenv("TERMINATION_LOG", str(path))
    return path
