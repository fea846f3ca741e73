"""Runs of the training programs with one process per rank, forked from a server that has imported
torch.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hack import small_models
from tests.helpers.processes import SOURCE, environment, free_port, ran, until

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tests.helpers.train_preload"])
DEADLINE_S = 300
SMOKE, LM = "gpuworker.train.train", "gpuworker.train.train_framework"
WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "ran",
    "to",
    "two",
    "red",
    "hats",
    "all",
    "day",
    "long",
]


def run_rank(module: str, arguments: list[str], variables: dict[str, str], output: str):
    """Main function of a rank's process."""
    os.environ.clear()
    os.environ.update(variables)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.path[:0] = [str(Path(module).parent)] if "/" in module else []
    sys.exit(
        importlib.import_module(Path(module).stem if "/" in module else module).main(arguments)
    )


class Ranks:
    """Processes of one start of a run. `module`: its name, or a file with a function main."""

    def __init__(
        self, module: str, folder: Path, *arguments: object, world: int = 1, **variables: object
    ):
        paths = f"{SOURCE.parents[1]}:{SOURCE}"
        if not os.environ.get("PYTHONPATH", "").startswith(
            paths
        ):  # of the server, which starts with the first rank
            os.environ["PYTHONPATH"] = f"{paths}:{os.environ.get('PYTHONPATH', '')}"
        os.environ["OMP_NUM_THREADS"] = "1"
        folder.mkdir(exist_ok=True)
        self.outputs = [folder / f"output-{time.monotonic_ns()}-{rank}" for rank in range(world)]
        self.processes, port = [], free_port()
        words = [str(word) for word in ("--output", folder, *arguments)]
        for rank, output in enumerate(self.outputs):
            made = environment(
                RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=world, LOCAL_WORLD_SIZE=world, NODE_RANK=0,
                MASTER_ADDR="127.0.0.1", MASTER_PORT=port, HF_HUB_OFFLINE=1, **variables,
            )  # fmt: skip
            process = SERVER.Process(target=run_rank, args=(str(module), words, made, str(output)))
            process.start()
            self.processes.append(process)

    def wait(self) -> list[int]:
        """Exit codes of all ranks. As a launcher does, it ends the others once one has failed."""
        codes: list[int | None] = []

        def ended():
            codes[:] = [process.exitcode for process in self.processes]
            return None not in codes or not {*codes} <= {None, 0, 75, 143}

        try:
            until(ended, "the ranks end", DEADLINE_S)
        finally:
            for process in self.processes:
                process.kill()
                process.join()
        return [process.exitcode for process in self.processes]

    def end(self, code: int = 0) -> Ranks:
        codes = self.wait()
        assert set(codes) == {code}, f"{codes}\n{self.all_output}"
        return self

    @property
    def output(self) -> str:
        """Output of rank 0."""
        return self.outputs[0].read_text() if self.outputs[0].exists() else ""

    @property
    def all_output(self) -> str:
        return "\n".join(output.read_text() for output in self.outputs if output.exists())

    def facts(self, tag: str, name: str) -> list[str]:
        """Values in the lines of rank 0 with this tag and name."""
        return re.findall(rf"^\[{tag}\] .*\b{name}=(\S+)", self.output, re.MULTILINE)

    def fact(self, tag: str, name: str) -> str:
        return self.facts(tag, name)[-1]


def cut_off(
    module: str,
    folder: Path,
    step: int,
    number: signal.Signals,
    *arguments: object,
    known: str = "",
    **more: object,
) -> Ranks:
    """A start of a slow program that gets the signal in the step after `step`: SIGTERM one rank,
    SIGKILL all.

    In that step it waits for the signal, which comes once its output has the text `known`.
    """
    folder.mkdir(exist_ok=True)
    pause = folder / f"pause-{time.monotonic_ns()}"
    ranks = Ranks(module, folder, *arguments, PAUSE_AT=step + 1, PAUSE_FILE=pause, **more)
    line = re.compile(rf"^\[STEP\] .*\bstep={step}\b", re.MULTILINE)

    def arrived():
        return ranks.processes[0].exitcode is not None or bool(
            line.search(ranks.output) and known in ranks.output
        )

    until(arrived, f"step {step}", DEADLINE_S)
    for process in (
        ranks.processes if number == signal.SIGKILL else [random.choice(ranks.processes)]
    ):
        os.kill(process.pid, number)
    pause.touch()
    return ranks


def on_small_disk(
    folder: Path, megabytes: int, *train: object, then: str = "true", **variables: object
) -> subprocess.CompletedProcess:
    """Run a module with its arguments while `folder` is a file system of this size, and `then` in
    the shell. It is in a namespace of its own; skips where the system does not allow one.
    """
    script = f'mount -t tmpfs -o size={megabytes}m none "$0" && "$@"; code=$?; {then}; exit $code'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, str(folder)]
    command += [sys.executable, "-m", *map(str, train)]
    done = ran(*command, env=environment(**variables), timeout=240)
    if "unshare" in done.stderr:
        pytest.skip(done.stderr)
    return done


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "run").glob("epoch-*"))


def hashes(folder: Path, name: str) -> dict[str, str]:
    """SHA-256 of weights and optimizer of a checkpoint; there is at least one of each."""
    files = [
        path for path in (folder / "run" / name / "rank-0").iterdir()
        if path.suffix == ".safetensors" or path.name in ("optimizer.pt", "state.pt")
    ]  # fmt: skip
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert "state.pt" in found or {"optimizer.pt", "model.safetensors"} <= {*found}, found
    return found


@functools.cache
def texts(count: int = 132, seed: int = 1) -> list[str]:
    numbers = random.Random(seed)
    return [" ".join(numbers.choices(WORDS, k=12)) for _ in range(count)]


def write(path: Path, rows: list) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def text_file(folder: Path, count: int = 132, seed: int = 1) -> Path:
    return write(
        folder / f"text-{seed}-{count}.jsonl", [{"text": text} for text in texts(count, seed)]
    )


def language_model(folder: Path, kind: str = "llama", **changes: object) -> tuple[object, ...]:
    """Flags of a small model and of its data."""
    model = small_models.make(folder / f"model-{kind}", kind, **changes)
    return ("--model-local-dir", model, "--data", text_file(folder), "--lr", 1e-3)
