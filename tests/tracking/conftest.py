"""Ranks as separate processes, and the servers that they report to. These tests run in the environment `track`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.helpers.processes import until
from tests.tracking import pluto_stand_in

REPO = Path(__file__).resolve().parents[2]
KEPT_OUT = ("PLUTO_", "MLOP_", "MLFLOW_", "CI")


class Ranks:
    """Starts ranks and collects their output."""

    def __init__(self, folder: Path):
        self.folder, self.out, self.tmp = folder, folder / "out", folder / "tmp"
        self.tmp.mkdir()
        self.processes: list[subprocess.Popen] = []

    def start(self, *arguments: object, rank: int = 0, world: int = 1, **variables: str) -> subprocess.Popen:
        """Start one process per node, as torchrun would."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(KEPT_OUT)}
        numbers = {"RANK": rank, "LOCAL_RANK": 0, "NODE_RANK": rank, "WORLD_SIZE": world, "NNODES": world}
        process = subprocess.Popen(
            [sys.executable, Path(__file__).parent / "rank.py", "--out", self.out, *map(str, arguments)],
            env={
                **inherited, "PYTHONPATH": str(REPO / "worker/src"), "TMPDIR": str(self.tmp), "PYTHONUNBUFFERED": "1",
                **{key: str(value) for key, value in numbers.items()}, **variables,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def end(self, process: subprocess.Popen, code: int = 0, seconds: float = 90) -> tuple[str, dict]:
        """Output and the facts of its last line. Asserts the exit code."""
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            state = "runs" if process.poll() is None else "has ended, and another process holds its output"
            pytest.fail(f"not ended within {seconds} s: it {state}; {self.senders()}; output: {error.output}", False)
        assert process.returncode == code, output
        facts = [line for line in output.splitlines() if line.startswith("{")]
        return output, json.loads(facts[-1]) if facts else {}

    def unsent(self, tracker: str, rank: int = 0) -> list[dict]:
        """Records of the file with unsent records."""
        (file,) = self.out.glob(f"unsent-{tracker}-rank-{rank}-*.jsonl")
        return [json.loads(line) for line in file.read_text().splitlines()[1:]]

    def resend(self, file: Path, **variables: str) -> str:
        command = [sys.executable, "-m", "gpuworker.train.trackers.sender", "--resend", file]
        environment = {**os.environ, "PYTHONPATH": str(REPO / "worker/src"), "TMPDIR": str(self.tmp), **variables}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def senders(self) -> dict[int, str]:
        """Process id -> command line of every sender and uploader of these ranks."""
        found, parents = {}, {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if str(self.tmp) in command:
                found[int(folder.name)], parents[int(folder.name)] = command, int(parent)
        # Between fork and exec, a child process has the command line of its parent.
        return {process: command for process, command in found.items() if found.get(parents[process]) != command}


class Refusing(BaseHTTPRequestHandler):
    """A proxy that answers every request with a status and JSON of its own."""

    status = 401

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = self.answer()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def answer(self) -> bytes:
        return b'{"detail": "not here"}'

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    started = Ranks(tmp_path)
    yield started
    for process in started.processes:
        process.kill()
        process.wait()
        process.stdout.close()
    until(lambda: not started.senders(), "no sender is left", 45)


@pytest.fixture
def pluto() -> Iterator[pluto_stand_in.Server]:
    """Stand-in server in a thread."""
    server = pluto_stand_in.Server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.fault = ""
    server.shutdown()
    server.server_close()
    thread.join()


def pluto_at(port: int, **more: str) -> dict[str, str]:
    """Variables that direct Pluto's client to a server on this port."""
    urls = {f"PLUTO_URL_{name}": f"http://127.0.0.1:{port}" for name in ("APP", "API", "INGEST", "PY")}
    return {"PLUTO_API_KEY": pluto_stand_in.KEY, "PLUTO_PROJECT": "tests", "PLUTO_RUN_ID": "run-7f3a", **urls, **more}
