"""What only the owner of a cluster can do to a torchrun world: cut its network, and take away DNS, the API server and
a node."""

from __future__ import annotations

import time

import pytest

from hack.local_cluster.settings import Node, nodes
from tests.helpers.cluster_faults import cut_network, frozen, kill_node
from tests.helpers.ddp_pods import (
    SILENCE_S,
    TRAIN,
    ends,
    inside,
    job_ended,
    node,
    now,
    one_verdict,
    said,
    start,
    until_trains,
)
from tests.helpers.kube import Namespace, wait_until

pytestmark = pytest.mark.matrix
ONE_POD_A_NODE = ("--set", "placement.onePodPerNode=required")
BREAK_S = 30  # how long a fault lasts: it is slept through, since nothing may happen meanwhile
# Long enough for the break and for TCP, which tries again at ever longer intervals.
TRAIN_ON = TRAIN.replace("FAULT", "if step == 900: break")


def addresses(space: Namespace) -> dict[Node, str]:
    pods = [node(space, number) for number in range(2)]
    return {each: p["status"]["podIP"] for each in nodes() for p in pods if p["spec"]["nodeName"] == each.name}


def both_run(space: Namespace) -> bool:
    return [node(space, number)["status"]["phase"] for number in range(2)] == ["Running"] * 2


def completes_at_once(space: Namespace) -> None:
    assert wait_until(lambda: job_ended(space), "the Job ended", 200) == "Complete"
    assert all("attempt=0 " in text for text in said(space).values())


def test_packets_are_dropped_at_the_start(namespace: Namespace) -> None:
    start(namespace, *ONE_POD_A_NODE, before="until [ -e /tmp/go ]; do sleep 0.2; done")
    wait_until(lambda: both_run(namespace), "both pods run", 60)
    with cut_network(addresses(namespace)):
        for number in range(2):
            inside(namespace, number, "touch /tmp/go")
        found = ends(namespace, 0, 1, since=now())
    one_verdict({0: found[0]}, 66, "node-missing", "node 1 did not join")
    one_verdict({1: found[1]}, 65, "packets-dropped", "does not answer")


def test_the_network_is_cut(namespace: Namespace) -> None:
    start(namespace, *ONE_POD_A_NODE, program=TRAIN_ON)
    until_trains(namespace)
    with cut_network(addresses(namespace)):
        found = ends(namespace, 0, 1, within_s=SILENCE_S, since=now())
    one_verdict({0: found[0]}, 66, "node-lost", "node 1")
    one_verdict({1: found[1]}, 66, "node-lost", "node 0")


def test_the_network_is_cut_and_comes_back(namespace: Namespace) -> None:
    start(namespace, *ONE_POD_A_NODE, "--set", "timeouts.heartbeatSeconds=60", program=TRAIN_ON)
    until_trains(namespace)
    with cut_network(addresses(namespace)):
        time.sleep(20)  # the length of the cut
    completes_at_once(namespace)


def test_dns_is_down_at_the_start(namespace: Namespace) -> None:
    with frozen("coredns"):
        start(namespace, "--set", "timeouts.joinSeconds=120", program=TRAIN.replace("FAULT", "if step == 6: break"))
        wait_until(lambda: both_run(namespace), "both pods run", 60)
        time.sleep(BREAK_S)
        assert "phase=resolve" not in said(namespace)[1]  # node 0's own name is in its /etc/hosts
    completes_at_once(namespace)


@pytest.mark.parametrize("unit", ["coredns", "apiserver"])
def test_what_a_run_does_not_need(namespace: Namespace, unit: str) -> None:
    start(namespace, program=TRAIN_ON)
    until_trains(namespace)
    with frozen(unit):
        time.sleep(BREAK_S)
    completes_at_once(namespace)


def test_a_lost_node(namespace: Namespace) -> None:
    """Last of all: what is left of the cluster is of no use to other tests."""
    start(namespace, *ONE_POD_A_NODE, program=TRAIN.replace("FAULT", ""))
    until_trains(namespace)
    on_n2 = next(number for number in range(2) if node(namespace, number)["spec"]["nodeName"] == nodes()[1].name)
    lost = now()
    kill_node(nodes()[1])
    found = ends(namespace, 1 - on_n2, within_s=SILENCE_S, since=lost)
    one_verdict(found, 66, "node-lost", f"node {on_n2}")
