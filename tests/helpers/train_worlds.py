"""Runs of the training programs, each rank a process of its own, forked from a server that has imported torch once."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.helpers.processes import SOURCE, environment, free_port, until

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tests.helpers.train_preload"])
DEADLINE_S = 300  # these tests have low priority beside those with pods
LM, SMOKE = "gpuworker.train.train_framework", "gpuworker.train.train_smoke"
DATA = SOURCE / "gpuworker" / "train" / "data"
# Milliseconds a step: what these tests are about does not depend on the model's size.
TINY = (
    "--from-scratch",
    "gpt2-tiny",
    "--seq-len",
    64,
    "--lr",
    1e-3,
    "--epochs",
    2,
    "--log-every",
    1,
    "--device",
    "cpu",
)


def start_server() -> None:
    """With the paths that it needs; it starts once, with the first rank."""
    paths = f"{SOURCE.parents[1]}:{SOURCE}"
    if not os.environ.get("PYTHONPATH", "").startswith(paths):
        os.environ["PYTHONPATH"] = f"{paths}:{os.environ.get('PYTHONPATH', '')}"
    os.environ["OMP_NUM_THREADS"] = "1"


def be_rank(module: str, arguments: list[str], variables: dict[str, str], output: str) -> None:
    """What a rank's process does."""
    os.environ.clear()
    os.environ.update(variables)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.exit(importlib.import_module(module).main(arguments))


class Ranks:
    """The processes of one attempt of a run. `world` 0: one process that was not started by torchrun."""

    def __init__(self, module: str, arguments: tuple, world: int, folder: Path, **variables: object):
        start_server()
        self.outputs = [folder / f"output-{time.monotonic_ns()}-{rank}" for rank in range(max(1, world))]
        self.processes = []
        port = free_port()
        for rank, output in enumerate(self.outputs):
            own = {"TMPDIR": folder, "NODE_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **variables}
            if world:
                own |= {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world}
            words = [str(word) for word in arguments]
            process = SERVER.Process(target=be_rank, args=(module, words, environment(**own), str(output)))
            process.start()
            self.processes.append(process)

    def wait(self, deadline_s: float = DEADLINE_S) -> list[int]:
        """Exit codes of all ranks. As torchrun does, it kills the others once one has failed."""
        codes: list[int | None] = []

        def over() -> bool:
            codes[:] = [process.exitcode for process in self.processes]
            return None not in codes or any(codes)

        try:
            until(over, "the ranks end", deadline_s)
        finally:
            # 75 is no failure: the others save too.
            end = time.monotonic() + (30 if codes and set(codes) <= {None, 0, 75, 143} else 0)
            for process in self.processes:
                process.join(max(0.0, end - time.monotonic()))
                if process.exitcode is None:
                    process.kill()
                    process.join()
        return [process.exitcode for process in self.processes]

    def signal(self, number: signal.Signals, ranks: list[int]) -> None:
        for rank in ranks:
            if self.processes[rank].is_alive():
                os.kill(self.processes[rank].pid, number)

    def until_said(self, words: str) -> None:
        until(
            lambda: words in self.said or self.processes[0].exitcode is not None, f"rank 0 says {words!r}", DEADLINE_S
        )

    @property
    def said(self) -> str:
        """What rank 0 said."""
        return self.outputs[0].read_text() if self.outputs[0].exists() else ""

    def say(self) -> str:
        return "\n".join(output.read_text() for output in self.outputs if output.exists())


def train(
    folder: Path, *arguments: object, world: int = 0, module: str = LM, code: int = 0, **variables: object
) -> Ranks:
    """Run to the end; every rank must end with this code."""
    first = TINY if module == LM else ("--device", "cpu")
    ranks = Ranks(module, (*first, "--output", folder, *arguments), world, folder, **variables)
    codes = ranks.wait()
    assert set(codes) == {code}, f"{codes}\n{ranks.say()}"
    return ranks


def report(folder: Path, run: str = "run") -> dict:
    return json.loads((folder / run / "report.json").read_text())


def losses(folder: Path) -> list[float]:
    return [entry["loss"] for entry in report(folder)["history"]]


def weights(folder: Path, name: str = "latest") -> dict[str, str]:
    """Digests of a checkpoint's weights and optimizer state."""
    files = json.loads((folder / "run" / name / "manifest.json").read_text())["files"]
    return {name: entry["sha256"] for name, entry in files.items() if name.endswith((".safetensors", ".pt"))}


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "run").glob("epoch-*"))


Condition = Callable[[], object]
