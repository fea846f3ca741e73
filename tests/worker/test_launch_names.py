"""ddp-launch and DNS: names that do not resolve, resolve late, or lead to another pod."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from gpuworker.launch.coordinator import MAGIC, decode, encode
from gpuworker.launch.participant import Member
from tests.helpers.launchers import DEADLINE_S, NOBODY, Run

pytestmark = pytest.mark.slow


@pytest.fixture
def run(start, tmp_path):
    return Run(start, tmp_path)


def test_the_name_does_not_resolve(run):
    for node in range(2):
        run.pod(node, 2, MASTER_ADDR=NOBODY)
    run.all_end(64, "no-name", f"{NOBODY} did not resolve within {DEADLINE_S} s")


def test_the_name_resolves_late(run):
    for node in range(2):
        run.pod(node, 2, "--deadline=20", FAULT_DNS_S=3)
    assert run.wait() == [0, 0], run.say()


def test_dns_goes_away_once_the_nodes_have_met(run):
    """From then on everything goes by address; torchrun gets the address too."""
    run.pod(0, 1, DEBUG_DISTRIBUTED=1)
    assert run.wait() == [0], run.say()
    assert f"--rdzv-endpoint=127.0.0.1:{run.port} " in run.pods[0].output


def test_the_name_is_not_node_0s_own(run):
    """As that of a Service with an address of its own would be."""
    run.pod(0, 1, MASTER_ADDR="192.0.2.1")
    run.all_end(64, "wrong-name", "192.0.2.1 is 192.0.2.1, and node 0")


def test_dns_still_has_the_address_of_the_pod_before(run):
    """Node 0 waits until the name is its own; nothing is sent to the address before."""
    run.pod(0, 2, "--deadline=20", FAULT_STALE="192.0.2.1:3")
    run.pod(1, 2, "--deadline=20")
    assert run.wait() == [0, 0], run.say()
    assert "localhost is 192.0.2.1, which node 0 does not have" in run.pods[0].output


def test_another_node_asks_again_where_node_0_is():
    """Whoever asked too early has the address of a pod that is gone."""

    async def node_0(reader, writer) -> None:
        assert decode(await reader.readline())["hello"] == MAGIC
        writer.write(encode({"welcome": []}) + encode({"go": {"id": "x"}}))
        await reader.read()
        writer.close()
        over.set()

    over = asyncio.Event()

    async def meet() -> str:
        server = await asyncio.start_server(node_0, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        plan = SimpleNamespace(master="localhost", roll_port=port, run_id="r", seconds={"deadline": 10, "silence": 9})
        member = Member(plan, {}, "127.0.0.9", {})
        try:
            await member.join(time.monotonic() + 10)
            return member.address
        finally:
            member.living.cancel()
            await asyncio.wait({member.living})
            server.close()
            await asyncio.wait_for(over.wait(), 5)

    assert asyncio.run(meet()) == "127.0.0.1"
