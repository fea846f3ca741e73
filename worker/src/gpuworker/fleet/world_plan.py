"""Which nodes run the checks across nodes together, and when."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gpuworker.judgement.fleet_report import Fleet
from gpuworker.judgement.report import FAIL, INCOMPLETE, PASS, WARN, WORLD

IDLE_S = 50.0  # an idle pod asks at least twice in this time
TRIES = 2  # of the same pods, if no report comes of it
WAIT, LEAVE = {"state": "wait"}, {"state": "leave"}


class WorldPlan:
    """Gives each idle pod its part: a rank, or to wait, or to leave. Safe for several threads.

    The nodes that passed their own checks run together, when all expected nodes have reported and
    all these pods are idle. They run again when one of their pods was replaced, as that of a
    repaired node is.
    """

    def __init__(self, forget: Callable[[], None]) -> None:
        self.forget = forget  # the report of the world before
        self.lock = threading.Lock()
        self.idle: dict[str, tuple[str, float]] = {}  # node -> address, and when it asked last
        self.orders: dict[str, dict] = {}  # node -> its part, which it has not taken yet
        self.members: dict[str, str] = {}  # of the last world: node -> pod
        self.tries = 0

    def order(self, node: str, address: str, fleet: Fleet) -> dict:
        """The part of an idle pod, when no report of a node is lacking."""
        members = passed(fleet)
        with self.lock:
            if order := self.orders.pop(node, None):
                return order
            if len(members) < 2 or node not in members:
                return LEAVE
            now, same = time.monotonic(), members == self.members
            self.idle[node] = address, now
            if same and self._over(fleet):
                return LEAVE
            if any(now - self.idle.get(each, ("", 0.0))[1] > IDLE_S for each in members):
                return WAIT
            self.members, self.tries = members, self.tries * same + 1
            self.forget()
            world = {"nodes": len(members), "address": self.idle[min(members)][0]}
            for rank, each in enumerate(sorted(members)):
                self.orders[each] = {"state": "run", "node_rank": rank, **world}
            self.idle.clear()
            return self.orders.pop(node)

    def pending(self, fleet: Fleet) -> bool:
        """Whether a report of the checks across nodes is still to come."""
        members = passed(fleet)
        with self.lock:
            return len(members) > 1 and (members != self.members or not self._over(fleet))

    def _over(self, fleet: Fleet) -> bool:
        """Whether the last world has a report, or has been tried enough."""
        given_up = self.tries == TRIES and set(self.members) <= set(self.idle)
        return bool(fleet.worlds) or given_up


def passed(fleet: Fleet) -> dict[str, str]:
    """Nodes that passed, whatever the checks across nodes found, and their pods."""
    doubted = {
        finding.node
        for finding in fleet.findings
        if finding.verdict in (FAIL, INCOMPLETE) and finding.found_by != WORLD
    }
    return {
        node.node: node.pod
        for node in fleet.nodes
        if node.reported_verdict in (PASS, WARN) and node.node not in doubted
    }
