"""group-agent as a pod would run it, but at one loopback address, with names from a file (HOST ADDRESS lines)."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from gpuworker.group import agent, peers

NAMES = Path(os.environ["NAMES"])


async def addresses(self: peers.Peers, name: str) -> list[str]:
    known = [line.split() for line in NAMES.read_text().splitlines()]
    return [address for host, address in known if host == name]


peers.Peers.addresses = addresses
agent.Agent.live = functools.partialmethod(agent.Agent.live, os.environ["ADDRESS"])
agent.main()
