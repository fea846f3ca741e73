"""The wait for etcd, if something else answers at its address."""

from __future__ import annotations

import asyncio
import time

import pytest

from gpuworker.launch import etcd
from gpuworker.launch.config import parser, read_config
from gpuworker.launch.failure_causes import Verdict
from tests.helpers.launchers import CONTRACT

BODIES = (b"", b"[]", b"7", b'{"etcdserver": 3}', b"[" * 100_000, b"\xff", b"{}")


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK", b"HTTP/1.1", b"HTTP/1.1 \xff", b""])
@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_an_answer_that_is_not_etcds_is_a_verdict(head, body):
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(head + b"\r\n\r\n" + body)
        writer.close()

    async def wait() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        flags = ["--backend=etcd", f"--etcd=127.0.0.1:{port}", "--", "-m", "program"]
        async with server:
            await etcd.wait(read_config(parser().parse_args(flags), CONTRACT), time.monotonic() + 1)

    if body == b'{"etcdserver": 3}' and head.endswith(b"OK"):
        return asyncio.run(wait())  # as good as etcd
    with pytest.raises(Verdict) as found:
        asyncio.run(wait())
    assert found.value.cause.key == "etcd-unreachable"
    return None
