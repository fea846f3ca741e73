"""group-agent as in a pod, but on one loopback address, and with names from a file (HOST ADDRESS lines).

While the file FAULT exists, the volume of the logs fails with the error number in it, or hangs if that is 0.
"""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path

from gpuworker.group import agent, peer_client, state_store, task_log

NAMES, FAULT = Path(os.environ["NAMES"]), Path(os.environ["FAULT"])


async def addresses(self: peer_client.PeerClient, name: str) -> list[str]:
    known = [line.split() for line in NAMES.read_text().splitlines()]
    return [address for host, address in known if host == name]


def may_fail(method):
    """The method, after what the volume does now."""

    @functools.wraps(method)
    def call(*arguments):
        while FAULT.exists():
            if number := int(FAULT.read_text() or 0):
                raise OSError(number, os.strerror(number))
            time.sleep(0.05)
        return method(*arguments)

    return call


peer_client.PeerClient.addresses = addresses
for name in ("_open_target", "_append", "_sync"):
    setattr(task_log.TaskLog, name, may_fail(getattr(task_log.TaskLog, name)))
state_store.VolumeStore.on_volume = staticmethod(may_fail(state_store.VolumeStore.on_volume))
task_log.BACKLOG_BYTES = int(os.environ.get("BACKLOG_BYTES", task_log.BACKLOG_BYTES))
task_log.HANGS_S = float(os.environ.get("HANGS_S", task_log.HANGS_S))
task_log.SYNC_S = float(os.environ.get("SYNC_S", task_log.SYNC_S))
agent.Agent.run_forever = functools.partialmethod(agent.Agent.run_forever, os.environ["ADDRESS"])
agent.main()
