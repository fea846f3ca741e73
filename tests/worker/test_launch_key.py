"""Launchers with a key: a stranger that knows the run's id neither ends nor joins the run."""

from __future__ import annotations

import contextlib
import socket

import pytest

from gpuworker.launch.protocol import CODEC, VERSION, End, Hello, NodeInfo, Rejected
from gpuworker.runtime.json_lines import encode
from tests.helpers.launchers import Run
from tests.helpers.processes import until

pytestmark = pytest.mark.slow
FORGED = [NodeInfo(node=1, nnodes=2, problem=End("usage", "forged")), NodeInfo(node=77, nnodes=2), NodeInfo(node=1)]


@pytest.fixture
def run(start, tmp_path) -> Run:
    return Run(start, tmp_path)


def reply(port: int, data: bytes) -> bytes | None:
    """What the coordinator sends until it closes the connection, or nothing while it does not listen."""
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), 60) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(65536):
                received += part
        return received
    return None


def test_a_stranger_with_the_runs_id_changes_nothing(run, tmp_path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    run.pod(0, 2, GPU_CHARTS_KEY_FILE=key)
    for info in FORGED:
        hello = encode(Hello(VERSION, "test", info))
        for data in (hello, b"0" * 32 + b"\n" + hello, b"0" * 32 + b"\n" + b"0" * 64 + b" " + hello):
            assert b"{" not in until(lambda data=data: reply(run.port + 1, data), "node 0 answers with its nonce")
    run.pod(1, 2, GPU_CHARTS_KEY_FILE=key)
    assert run.wait() == [0, 0], run.output


def test_a_stranger_does_not_learn_the_runs_id(run) -> None:
    """Without a key the id is all that a message needs to be of the run."""
    run.pod(0, 2)
    hello = encode(Hello(VERSION, "guessed", NodeInfo(node=1, nnodes=2)))
    received = until(lambda: reply(run.port + 1, hello), "node 0 answers")
    assert isinstance(CODEC.decode(received), Rejected) and b"test" not in received
    run.pod(1, 2)
    assert run.wait() == [0, 0], run.output


def test_a_key_that_cannot_be_used_is_a_wrong_setting(run, tmp_path) -> None:
    run.pod(0, 1, GPU_CHARTS_KEY_FILE=tmp_path / "absent")
    assert run.wait() == [2], run.output
