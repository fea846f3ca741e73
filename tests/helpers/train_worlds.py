"""Runs of the training programs with one process per rank, forked from a server that has imported torch."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

from tests.helpers.processes import SOURCE, environment, free_port, until

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tests.helpers.train_preload"])
DEADLINE_S = 300  # these tests have low priority beside those with pods
LM, SMOKE = "gpuworker.train.train_framework", "gpuworker.train.train_smoke"
DATA = SOURCE / "gpuworker" / "train" / "data"
# Milliseconds per step. The tests do not depend on the size of the model.
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


def prepare_server() -> None:
    """Set the environment of the fork server, which starts with the first rank."""
    paths = f"{SOURCE.parents[1]}:{SOURCE}"
    if not os.environ.get("PYTHONPATH", "").startswith(paths):
        os.environ["PYTHONPATH"] = f"{paths}:{os.environ.get('PYTHONPATH', '')}"
    os.environ["OMP_NUM_THREADS"] = "1"


def run_rank(module: str, arguments: list[str], variables: dict[str, str], output: str) -> None:
    """Main function of a rank's process."""
    os.environ.clear()
    os.environ.update(variables)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.exit(importlib.import_module(module).main(arguments))


class Ranks:
    """Processes of one attempt of a run. `world` 0: one process that torchrun has not started."""

    def __init__(self, module: str, arguments: tuple, world: int, folder: Path, **variables: object):
        prepare_server()
        self.outputs = [folder / f"output-{time.monotonic_ns()}-{rank}" for rank in range(max(1, world))]
        self.processes = []
        port = free_port()
        for rank, output in enumerate(self.outputs):
            rank_environment = {
                "TMPDIR": folder,
                "NODE_RANK": 0,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                **variables,
            }
            if world:
                rank_environment |= {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world}
            words = [str(word) for word in arguments]
            process = SERVER.Process(
                target=run_rank, args=(module, words, environment(**rank_environment), str(output))
            )
            process.start()
            self.processes.append(process)

    def wait(self, deadline_s: float = DEADLINE_S) -> list[int]:
        """Exit codes of all ranks. As torchrun does, it kills the other ranks once one has failed."""
        codes: list[int | None] = []

        def ended() -> bool:
            codes[:] = [process.exitcode for process in self.processes]
            return None not in codes or any(codes)

        try:
            until(ended, "the ranks end", deadline_s)
        finally:
            # 75 is not a failure: the other ranks save too.
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

    def wait_for_output(self, words: str) -> None:
        until(
            lambda: words in self.output or self.processes[0].exitcode is not None, f"rank 0 logs {words!r}", DEADLINE_S
        )

    @property
    def output(self) -> str:
        """Output of rank 0."""
        return self.outputs[0].read_text() if self.outputs[0].exists() else ""

    def all_output(self) -> str:
        return "\n".join(output.read_text() for output in self.outputs if output.exists())


def train(
    folder: Path, *arguments: object, world: int = 0, module: str = LM, code: int = 0, **variables: object
) -> Ranks:
    """Run to the end. Every rank must exit with this code."""
    first = TINY if module == LM else ("--device", "cpu")
    ranks = Ranks(module, (*first, "--output", folder, *arguments), world, folder, **variables)
    codes = ranks.wait()
    assert set(codes) == {code}, f"{codes}\n{ranks.all_output()}"
    return ranks


def report(folder: Path, run: str = "run") -> dict:
    return json.loads((folder / run / "report.json").read_text())


def losses(folder: Path) -> list[float]:
    return [entry["loss"] for entry in report(folder)["history"]]


def weights(folder: Path, name: str = "latest") -> dict[str, str]:
    """SHA-256 of a checkpoint's weights and optimizer state."""
    files = json.loads((folder / "run" / name / "manifest.json").read_text())["files"]
    return {name: entry["sha256"] for name, entry in files.items() if name.endswith((".safetensors", ".pt"))}


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "run").glob("epoch-*"))
