"""Credentials in the environment of MLflow's real client, which fails: none is in a line or a file."""

from __future__ import annotations

import base64
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from tests.tracking.conftest import Ranks, Refusing

SECRET = "hun/ter2"
QUOTED = "hun%2Fter2"


class Echo(Refusing):
    """Has the request's header in its answer, and stores the headers."""

    seen: ClassVar[set[str]] = set()

    def answer(self) -> bytes:
        header = self.headers.get("Authorization")
        self.seen.add(header or "")
        return f'{{"message": "refused {header}"}}'.encode()


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    handler = type("Handler", (Echo,), {"seen": set()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def texts(ranks: Ranks, output: str) -> str:
    """The output, and every file that is left."""
    files = [path for path in ranks.folder.rglob("*") if path.is_file()]
    return output + "".join(path.read_bytes().decode(errors="replace") for path in files)


def assert_hidden(found: str) -> None:
    pairs = [base64.b64encode(f"user:{each}".encode()).decode() for each in (SECRET, QUOTED)]
    for form in (SECRET, QUOTED, *pairs):
        assert form not in found, found


@pytest.mark.parametrize("status", [401, 503, 0], ids=["rejected", "unavailable", "no server"])
def test_the_password_in_the_address_is_in_no_line_and_no_file(ranks: Ranks, server, status: int) -> None:
    server.RequestHandlerClass.status = status
    port = server.server_port if status else 2
    uri = f"http://user:{QUOTED}@127.0.0.1:{port}"
    (ranks.folder / "file").touch()
    # The folder cannot be made, so the rest stays on the node.
    flags = ("--steps", 5, "--tracker-timeout", 12, "--out", ranks.folder / "file" / "out")
    output, _ = ranks.end(ranks.start(*flags, MLFLOW_TRACKING_URI=uri))
    assert "state=unsent" in output and "state=re" in output and "state=failed" in output, output
    assert_hidden(texts(ranks, output))


@pytest.mark.parametrize("name", ["MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD"])
def test_a_key_is_sent_without_its_newline_and_is_in_no_line(ranks: Ranks, server, name: str) -> None:
    variables = {"MLFLOW_TRACKING_USERNAME": "user", name: SECRET + "\n"}
    flags = ("--steps", 5, "--tracker-timeout", 12)
    uri = f"http://127.0.0.1:{server.server_port}"
    output, _ = ranks.end(ranks.start(*flags, MLFLOW_TRACKING_URI=uri, **variables))
    (sent,) = server.RequestHandlerClass.seen
    pair = base64.b64encode(f"user:{SECRET}".encode()).decode()
    assert sent == (f"Bearer {SECRET}" if "TOKEN" in name else f"Basic {pair}")
    assert "state=rejected" in output and "denied access (401)" in output
    assert_hidden(texts(ranks, output))


def test_a_token_that_no_header_can_have_is_refused(ranks: Ranks) -> None:
    variables = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:2", "MLFLOW_TRACKING_TOKEN": f"two\n{SECRET}"}
    output, _ = ranks.end(ranks.start("--steps", 5, **variables), 2)
    assert "MLFLOW_TRACKING_TOKEN" in output and SECRET not in output


def test_a_required_server_that_is_away_is_one_failure(ranks: Ranks) -> None:
    flags = ("--steps", 5, "--tracker-timeout", 20, "--tracker-required")
    output, _ = ranks.end(ranks.start(*flags, MLFLOW_TRACKING_URI=f"http://user:{QUOTED}@127.0.0.1:2"), 1)
    assert "mlflow is required and could not be reached" in output and "Connection refused" in output
    assert "exited with" not in output and "state=failed" not in output
    assert not list(ranks.tmp.iterdir()) and not list(ranks.out.glob("*"))
    assert_hidden(output)


@pytest.mark.parametrize("words", [("--help",), (), ("--resend",), ("--resend", "nope"), ("--resend", __file__)])
def test_the_command_line_of_the_sender_has_no_traceback(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "gpuworker.train.trackers.sender", *words]
    source = str(Path(__file__).parents[2] / "worker/src")
    done = subprocess.run(command, env={"PYTHONPATH": source}, capture_output=True, text=True, timeout=60)
    text = done.stdout + done.stderr
    assert done.returncode == (0 if words == ("--help",) else 2) and "Traceback" not in text, text
    assert "--resend" in text or words[-1] in text
