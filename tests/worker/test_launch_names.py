"""ddp-launch and DNS: names that do not resolve, resolve late, or lead to another pod."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from gpuworker.launch.participant import Participant
from gpuworker.launch.protocol import CODEC, VERSION, Go, NodeInfo, Welcome
from gpuworker.runtime.json_lines import encode
from tests.helpers.launchers import DEADLINE_S, NOBODY, Run

pytestmark = pytest.mark.slow


@pytest.fixture
def run(start, tmp_path):
    return Run(start, tmp_path)


def test_the_name_does_not_resolve(run):
    for node in range(2):
        run.pod(node, 2, MASTER_ADDR=NOBODY)
    run.all_end(64, "name-not-resolved", f"{NOBODY} did not resolve within {DEADLINE_S} s")


def test_the_name_resolves_late(run):
    for node in range(2):
        run.pod(node, 2, "--join-timeout=20", FAULT_DNS_S=3)
    assert run.wait() == [0, 0], run.say()


def test_dns_goes_away_once_the_nodes_have_met(run):
    """From then on everything goes by address; torchrun gets the address too."""
    run.pod(0, 1, DEBUG_DISTRIBUTED=1)
    assert run.wait() == [0], run.say()
    assert f"--rdzv-endpoint=127.0.0.1:{run.port} " in run.pods[0].output


def test_the_name_is_not_node_0s_own(run):
    """As that of a Service with an address of its own would be."""
    run.pod(0, 1, MASTER_ADDR="192.0.2.1")
    run.all_end(64, "wrong-address", "192.0.2.1 is 192.0.2.1, and node 0")


def test_dns_still_has_the_address_of_the_pod_before(run):
    """Node 0 waits until the name is its own; nothing is sent to the address before."""
    run.pod(0, 2, "--join-timeout=20", FAULT_STALE="192.0.2.1:3")
    run.pod(1, 2, "--join-timeout=20")
    assert run.wait() == [0, 0], run.say()
    assert "localhost is 192.0.2.1, which node 0 does not have" in run.pods[0].output


def test_another_node_asks_again_where_node_0_is():
    """Whoever asked too early has the address of a pod that is gone."""

    async def node_0(reader, writer) -> None:
        assert CODEC.decode(await reader.readline()).version == VERSION
        writer.write(encode(Welcome([])) + encode(Go("x")))
        await reader.read()
        writer.close()
        over.set()

    over = asyncio.Event()

    async def meet() -> str:
        server = await asyncio.start_server(node_0, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        timeouts = {"join-timeout": 10, "heartbeat-timeout": 9}
        config = SimpleNamespace(master_addr="localhost", launcher_port=port, run_id="r", timeouts=timeouts)
        participant = Participant(config, NodeInfo(), "127.0.0.9", {})
        try:
            await participant.join(time.monotonic() + 10)
            return participant.address
        finally:
            participant.connection.cancel()
            await asyncio.wait({participant.connection})
            server.close()
            await asyncio.wait_for(over.wait(), 5)

    assert asyncio.run(meet()) == "127.0.0.1"
