"""ddp-run with real pods: worlds form in every workload and with every backend."""

from __future__ import annotations

import os
import re

import pytest

from tests.helpers.ddp_pods import TRAIN, etcd_image, install, job_ended, nodes_of, said, start
from tests.helpers.kube import REPO, Namespace, wait_until


@pytest.mark.parametrize("backend", ["c10d", "static", pytest.param("etcd", marks=pytest.mark.matrix)])
@pytest.mark.parametrize("nodes", [2, pytest.param(4, marks=pytest.mark.matrix)])
def test_a_world_forms(namespace: Namespace, nodes: int, backend: str) -> None:
    settings = [f"nodes={nodes}", "procsPerNode=2", f"rendezvous.backend={backend}"]
    if backend == "etcd":
        settings += ["rendezvous.etcd.deploy=true", f"rendezvous.etcd.image={etcd_image()}"]
    install(namespace, *(word for setting in settings for word in ("--set", setting)))
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 240) == "Complete"
    ranks = set()
    for node, text in said(namespace).items():
        phases = ["resolve", "interface", '"master ready, preflight"', '"world formed"', '"process group"']
        for phase in phases + ["etcd"] * (backend == "etcd"):
            assert f"[DDP] node={node} phase={phase} " in text, text
        assert "first_step=done" in text and f"[DONE] node={node} world={2 * nodes} " in text
        found = set(map(int, re.findall(r"\[DDP\] node=\d+ rank=(\d+) world=\d+ nodes=\d+ .* ok=true", text)))
        assert found == {2 * node, 2 * node + 1}, "rank follows node index"
        ranks |= found
    assert ranks == set(range(2 * nodes))


@pytest.mark.matrix
@pytest.mark.parametrize("number", range(int(os.environ.get("STARTS", "2"))))
def test_a_healthy_start_raises_no_alarm(namespace: Namespace, number: int) -> None:
    """STARTS=100 for more of them, with 2 to 8 pods in turn."""
    nodes = 2 + number % 7
    install(namespace, "--set", f"nodes={nodes}", "--set", "placement.onePodPerNode=any")
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 300) == "Complete"
    told = said(namespace)
    assert len(told) == len(nodes_of(namespace)) == nodes, "every pod started once"
    assert all(f"[DONE] node={node} world={nodes} " in text and "[FATAL]" not in text for node, text in told.items())


@pytest.mark.matrix
def test_ranks_are_indexes_with_twelve_pods(namespace: Namespace) -> None:
    program = TRAIN.replace("FAULT", "if step == 6: break")
    start(namespace, "--set", "nodes=12", "--set", "placement.onePodPerNode=any", "--set",
          "timeouts.joinSeconds=180", program=program)  # fmt: skip
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 400) == "Complete"
    for node, text in said(namespace).items():
        assert f"rank {node} of 12 on node {node} is done" in text


@pytest.mark.matrix
def test_a_statefulset_parks(namespace: Namespace) -> None:
    install(namespace, "--set", "workload=statefulset")
    wait_until(lambda: [t for t in said(namespace).values() if "[IDLE]" in t][1:], "both pods are parked", 240)
    for pod in nodes_of(namespace):
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
        assert pod["status"]["containerStatuses"][0]["ready"]


def test_a_jobset_starts_the_whole_set_again(namespace: Namespace) -> None:
    program = TRAIN.replace("FAULT", "if step == 7 and not attempt and dist.get_rank() == 1: sys.exit(9)")
    start(namespace, "--set", "workload=jobset", "--set", "maxRestarts=1", program=program)

    def completed() -> bool:
        return [s for s in namespace.objects("jobset") if s.get("status", {}).get("terminalState") == "Completed"] != []

    wait_until(completed, "the JobSet completed", 240)
    assert all("attempt=1 " in text for text in said(namespace).values())


@pytest.mark.matrix
def test_any_image_gets_the_launcher(namespace: Namespace) -> None:
    """The image is the worker's own, for want of another with torch; it runs what the init container brought."""
    install(
        namespace, "--set", f"program.image={namespace.cluster.image}",
        "--set", "program.args={-m,gpuworker.accept.ddp_tests,--numel,1000,--report-dir,/out}",
    )  # fmt: skip
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 240) == "Complete"


@pytest.mark.matrix
def test_a_bare_torchrun(namespace: Namespace) -> None:
    install(namespace, "--set", "launcher=torchrun")
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 240) == "Complete"


@pytest.mark.matrix
def test_node_0_starts_late(namespace: Namespace) -> None:
    start(namespace, "--set", "timeouts.joinSeconds=120", before='[ "$NODE_RANK" != 0 ] || sleep 60')
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 300) == "Complete"


@pytest.mark.matrix
@pytest.mark.parametrize("node", [0, 1])
def test_dns_still_has_the_pod_that_was_node_0_before(namespace: Namespace, node: int) -> None:
    """As for some seconds after a restart of the whole set."""
    fault = (REPO / "tests/helpers/launch_faults/sitecustomize.py").read_text()
    write = f"mkdir /tmp/fault; cat > /tmp/fault/sitecustomize.py <<'END'\n{fault}\nEND\n"
    stale = 'export PYTHONPATH=/tmp/fault FAULT_STALE="${POD_IP%.*}.250:10"'
    before = f'[ "$NODE_RANK" != {node} ] || {{\n{write}{stale}\n}}'
    start(namespace, "--set", "timeouts.joinSeconds=60", before=before)
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 240) == "Complete"
    assert ("which node 0 does not have" in said(namespace)[0]) == (node == 0)
