"""ddp-run under faults of the cluster: a cut network, and the loss of DNS, the API server or a
node.
"""

from __future__ import annotations

import time

import pytest

from hack.local_cluster.settings import Node, nodes
from tests.helpers.cluster_faults import cut_network, frozen, kill_node, start_node
from tests.helpers.ddp_pods import (
    GRACE_PERIOD_S,
    HEARTBEAT_TIMEOUT_S,
    TRAIN,
    assert_verdict,
    exec_in_node,
    job_ended,
    logs_by_node,
    node_pod,
    now,
    start,
    wait_for_ends,
    wait_until_training,
)
from tests.helpers.kube import Namespace, wait_until

pytestmark = pytest.mark.matrix
ONE_POD_PER_NODE = ("--set", "placement.onePodPerNode=required")
BREAK_S = 30  # duration of a fault; the test sleeps, because nothing may happen meanwhile
# Longer than the fault, and than the retries of TCP, whose intervals grow.
TRAIN_ON = TRAIN.replace("FAULT", "if step == 900: break")


def addresses(space: Namespace) -> dict[Node, str]:
    pods = [node_pod(space, number) for number in range(2)]
    return {
        each: p["status"]["podIP"]
        for each in nodes()
        for p in pods
        if p["spec"]["nodeName"] == each.name
    }


def both_run(space: Namespace) -> bool:
    return [node_pod(space, number)["status"]["phase"] for number in range(2)] == ["Running"] * 2


def completes_in_one_attempt(space: Namespace) -> None:
    assert wait_until(lambda: job_ended(space), "the Job ended", 200) == "Complete"
    assert all("attempt=0 " in text for text in logs_by_node(space).values())


def test_packets_dropped_during_preflight_are_reported(namespace: Namespace) -> None:
    start(namespace, *ONE_POD_PER_NODE, before="until [ -e /tmp/go ]; do sleep 0.2; done")
    wait_until(lambda: both_run(namespace), "both pods run", 60)
    with cut_network(addresses(namespace)):
        for number in range(2):
            exec_in_node(namespace, number, "touch /tmp/go")
        found = wait_for_ends(namespace, 0, 1, since=now())
    assert_verdict({0: found[0]}, 66, "node-missing", "node 1 ")
    assert_verdict({1: found[1]}, 65, "packets-dropped", "node 0 at ")


def test_a_network_cut_is_a_lost_node_on_both_sides(namespace: Namespace) -> None:
    start(namespace, *ONE_POD_PER_NODE, program=TRAIN_ON)
    wait_until_training(namespace)
    with cut_network(addresses(namespace)):
        # The program waits in a collective and does not end on SIGTERM.
        within_s = HEARTBEAT_TIMEOUT_S + GRACE_PERIOD_S
        found = wait_for_ends(namespace, 0, 1, within_s=within_s, since=now())
    assert_verdict({0: found[0]}, 71, "node-lost", "node 1")
    assert_verdict({1: found[1]}, 71, "node-lost", "node 0")


def test_a_run_survives_a_short_network_cut(namespace: Namespace) -> None:
    start(namespace, *ONE_POD_PER_NODE, "--set", "timeouts.heartbeatSeconds=60", program=TRAIN_ON)
    wait_until_training(namespace)
    with cut_network(addresses(namespace)):
        time.sleep(20)  # the length of the cut
    completes_in_one_attempt(namespace)


def test_a_run_waits_while_dns_is_down(namespace: Namespace) -> None:
    with frozen("coredns"):
        start(
            namespace,
            "--set",
            "timeouts.joinSeconds=120",
            program=TRAIN.replace("FAULT", "if step == 6: break"),
        )
        wait_until(lambda: both_run(namespace), "both pods run", 60)
        time.sleep(BREAK_S)
        assert (
            "phase=resolve" not in logs_by_node(namespace)[1]
        )  # node 0's own name is in its /etc/hosts
    completes_in_one_attempt(namespace)


@pytest.mark.parametrize("unit", ["coredns", "apiserver"])
def test_a_run_survives_without_dns_and_without_the_api_server(
    namespace: Namespace, unit: str
) -> None:
    start(namespace, program=TRAIN_ON)
    wait_until_training(namespace)
    with frozen(unit):
        time.sleep(BREAK_S)
    completes_in_one_attempt(namespace)


def lose_node(space: Namespace) -> None:
    """Its peer ends and names it. `maxRestarts` is 0."""
    wait_until_training(space)
    pods = {node_pod(space, number)["spec"]["nodeName"]: number for number in range(2)}
    lost, since = pods[nodes()[1].name], now()
    kill_node(nodes()[1])
    found = wait_for_ends(space, 1 - lost, within_s=HEARTBEAT_TIMEOUT_S, since=since)
    assert_verdict(found, 71, "node-lost", f"node {lost}")


@pytest.mark.parametrize("workload", ["indexed-job", "jobset"])
def test_a_run_goes_on_when_a_lost_node_is_back(namespace: Namespace, workload: str) -> None:
    """After a power failure of one machine."""
    start(
        namespace,
        *ONE_POD_PER_NODE,
        "--set",
        f"workload={workload}",
        program=TRAIN.replace("FAULT", ""),
    )
    lose_node(namespace)
    start_node(nodes()[1])
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 240) == "Complete", (
        logs_by_node(namespace)
    )


def test_a_run_goes_on_without_a_lost_node(namespace: Namespace) -> None:
    """The Node object is deleted, which clouds do. The last test, because others cannot use the
    cluster after it.
    """
    start(namespace, "--set", "timeouts.joinSeconds=300", program=TRAIN.replace("FAULT", ""))
    lose_node(namespace)
    namespace.cluster.kubectl("delete", "node", nodes()[1].name)
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 300) == "Complete", (
        logs_by_node(namespace)
    )
