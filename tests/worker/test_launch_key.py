"""The key of a launcher, and what a stranger learns without it."""

from __future__ import annotations

import contextlib
import socket

import pytest

from gpuworker.launch.failure_causes import Failure
from gpuworker.launch.protocol import ORDERS, NodeInfo, Status
from gpuworker.runtime.json_lines import encode
from tests.helpers.launchers import Run
from tests.helpers.processes import until

pytestmark = pytest.mark.slow


@pytest.fixture
def run(start, tmp_path) -> Run:
    return Run(start, tmp_path)


def reply(port: int, data: bytes) -> bytes | None:
    """What the coordinator sends until it closes the connection, or nothing while it does not
    listen.
    """
    with (
        contextlib.suppress(ConnectionRefusedError),
        socket.create_connection(("127.0.0.1", port), 60) as connection,
    ):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(65536):
                received += part
        return received
    return None


def test_a_stranger_does_not_learn_the_runs_id(run) -> None:
    """Without a key the id is all that a message needs to be of the run."""
    run.pod(0, 2)
    hello = encode(Status("guessed", NodeInfo(node=1)))
    received = until(lambda: reply(run.port + 1, hello), "node 0 answers")
    assert ORDERS.decode(received).rejected and b"test" not in received
    run.pod(1, 2)
    assert run.wait() == [0, 0], run.output


@pytest.mark.parametrize("cause", ["done", "nonsense"])
def test_a_problem_without_a_known_cause_is_no_hello(run, cause) -> None:
    """It would end every node: with success, or with a traceback."""
    program = [run.script("raise SystemExit(3)")]
    run.pod(0, 2, "--join-timeout=60", program=program)
    info = NodeInfo(node=1, problem=Failure("usage", "forged"))
    forged = encode(Status("test", info)).replace(b'"usage"', f'"{cause}"'.encode())
    assert until(lambda: reply(run.port + 1, forged) is not None, "node 0 answers")
    run.pod(1, 2, "--join-timeout=60", program=program)
    assert run.wait() == [1, 1] and "Traceback" not in run.pods[0].output, run.output


def test_a_key_that_cannot_be_used_is_a_wrong_setting(run, tmp_path) -> None:
    run.pod(0, 1, GPU_CHARTS_KEY_FILE=tmp_path / "absent")
    assert run.wait() == [2], run.output
