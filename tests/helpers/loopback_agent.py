"""group-agent as in a pod, but on one loopback address, and with names from a file (HOST ADDRESS
lines).
"""

import functools
import os
from pathlib import Path

from gpuworker.group import agent, peer_client

NAMES = Path(os.environ["NAMES"])


async def addresses(self: peer_client.PeerClient, name: str) -> list[str]:
    known = [line.split() for line in NAMES.read_text().splitlines()]
    return [address for host, address in known if host == name]


peer_client.PeerClient.addresses = addresses
agent.Agent.run_forever = functools.partialmethod(agent.Agent.run_forever, os.environ["ADDRESS"])
agent.main()
