"""ddp-run with real pods: worlds form with every workload and every backend."""

import os
import re

import pytest

from tests.helpers.ddp_pods import (
    TRAIN,
    etcd_image,
    install,
    job_ends,
    logs_by_node,
    node_pods,
    start,
)
from tests.helpers.kube import wait_until


@pytest.mark.parametrize(
    "nodes", [2, *(pytest.param(each, marks=pytest.mark.matrix) for each in (1, 4, 8))]
)
def test_a_world_forms(namespace, nodes):
    install(namespace, "--set", f"nodes={nodes},procsPerNode=2")
    assert job_ends(namespace) == "Complete"
    ranks = set()
    for node, text in logs_by_node(namespace).items():
        for phase in ("resolve", "interface", '"master ready, preflight"', '"ranks started"'):
            assert f"[DDP] node={node} phase={phase} " in text, text
        assert "first_step=done" in text and f"[DONE] node={node} world={2 * nodes} " in text
        found = set(
            map(
                int, re.findall(r"\[DDP\] node=\d+ rank=(\d+) world=\d+ nodes=\d+ .* ok=true", text)
            )
        )
        assert found == {2 * node, 2 * node + 1}, "rank follows node index"
        ranks |= found
    assert ranks == set(range(2 * nodes))


@pytest.mark.parametrize(
    "backend",
    ["c10d", *(pytest.param(each, marks=pytest.mark.matrix) for each in ("static", "etcd"))],
)
def test_a_bare_torchrun_forms_a_world(namespace, backend):
    settings = ["launcher=torchrun", "nodes=2", "procsPerNode=2", f"rendezvous.backend={backend}"]
    if backend == "etcd":
        settings += ["rendezvous.etcd.deploy=true", f"rendezvous.etcd.image={etcd_image()}"]
    install(namespace, "--set", ",".join(settings))
    assert job_ends(namespace) == "Complete"
    assert all("world=4" in text for text in logs_by_node(namespace).values())


@pytest.mark.matrix
@pytest.mark.parametrize("number", range(int(os.environ.get("STARTS", "2"))))
def test_a_healthy_run_starts_without_errors(namespace, number):
    """STARTS=100 repeats it, with 2 to 8 pods in turn."""
    nodes = 2 + number % 7
    install(namespace, "--set", f"nodes={nodes}", "--set", "placement.onePodPerNode=any")
    assert job_ends(namespace, 300) == "Complete"
    logs = logs_by_node(namespace)
    assert len(logs) == len(node_pods(namespace)) == nodes, "every pod started once"
    assert all(
        f"[DONE] node={node} world={nodes} " in text and "[FATAL]" not in text
        for node, text in logs.items()
    )


@pytest.mark.matrix
def test_the_pods_of_a_statefulset_idle_after_the_run(namespace):
    install(namespace, "--set", "workload=statefulset")
    wait_until(
        lambda: [t for t in logs_by_node(namespace).values() if "[IDLE]" in t][1:],
        "both pods idle",
        240,
    )
    for pod in node_pods(namespace):
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
        assert pod["status"]["containerStatuses"][0]["ready"]


def test_a_jobset_starts_all_pods_again(namespace):
    program = TRAIN.replace(
        "FAULT", "if step == 7 and not attempt and dist.get_rank() == 1: sys.exit(9)"
    )
    start(namespace, "--set", "workload=jobset", "--set", "maxRestarts=1", program=program)

    def completed():
        return [
            s
            for s in namespace.objects("jobset")
            if s.get("status", {}).get("terminalState") == "Completed"
        ] != []

    wait_until(completed, "the JobSet completed", 240)
    assert all("attempt=1 " in text for text in logs_by_node(namespace).values())
