"""A launcher that was frozen reads what node 0 sent meanwhile, also when node 0 has closed the connection since."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

from gpuworker.launch import protocol
from gpuworker.launch.command_line import read_arguments
from gpuworker.launch.config import LaunchConfig, read_config
from gpuworker.launch.failure_causes import Failure
from gpuworker.launch.participant import Participant
from gpuworker.runtime.json_lines import encode
from tests.helpers.launchers import CONTRACT
from tests.helpers.processes import until

VERDICT = Failure("node-lost", "node 1 sent no heartbeat for 4 s")


class Node0:
    """A coordinator that starts the run, and, once it is told, sends the verdict and is gone."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.end, self.gone = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        with self.listener:
            connection, _ = self.listener.accept()
        connection.recv(1 << 16)
        connection.sendall(encode(protocol.Welcome([])) + encode(protocol.Go()))
        self.end.wait(60)
        connection.sendall(encode(protocol.Heartbeat()) * 3 + encode(protocol.End(VERDICT)))
        connection.close()
        self.gone.set()


async def verdict_after_a_freeze(node_0: Node0, config: LaunchConfig) -> Failure:
    participant = Participant(config, protocol.NodeInfo(), "127.0.0.1", {})
    await participant.join(time.monotonic() + 60)
    # The loop does nothing while node 0 ends, as if this process were stopped, and then writes before it reads.
    node_0.end.set()
    until(node_0.gone.is_set, "node 0 is gone")
    for _ in range(3):
        participant.send(protocol.Heartbeat())
        time.sleep(0.1)
    return await asyncio.wait_for(participant.end, 60)


def test_a_write_to_a_node_0_that_is_gone_does_not_lose_its_verdict():
    node_0 = Node0()
    port = node_0.listener.getsockname()[1]
    environ = CONTRACT | {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port - 1)}
    config = read_config(read_arguments(["-m", "program"])[0], environ)
    assert config.launcher_port == port
    assert asyncio.run(verdict_after_a_freeze(node_0, config)).reason == VERDICT.reason
