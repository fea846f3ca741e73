"""Marks on real nodes: fault, mark, the next program elsewhere, repaired, passed, released; the
collector is killed.

MARK_ROUNDS=50 is the long form. A round has three tests of one node. Other tests must not run at
the same time: they would miss the node.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random

import pytest

from tests.e2e.test_gpu_accept import QUICKLY, fleet_of, fleet_when, run_of
from tests.helpers.kube import REPO, Cluster, Namespace, run, wait_until

ROUNDS = int(os.environ.get("MARK_ROUNDS", "3"))
STATE, UNFIT, CONDITION = "gpu-accept/state", "gpu-accept/unfit", "GpuAccepted"
APART_S = 5  # in place of an hour, between two passes; a test takes longer
SHORT_HOUR = json.dumps({"spec": {"containers": [{"args": [f"--hour={APART_S}"]}]}})
FLEET, NODE = "app.kubernetes.io/component=fleet", "app.kubernetes.io/component=node"


def node(cluster: Cluster, name: str) -> dict:
    return json.loads(cluster.kubectl("get", "node", name, "-o", "json"))


def others(found: dict) -> dict:
    """What is neither ours nor written by the kubelet again and again."""
    found = copy.deepcopy(found)
    meta, spec = found["metadata"], found["spec"]
    meta["annotations"].pop(STATE, None)
    taints = [taint for taint in spec.pop("taints", []) if taint["key"] != UNFIT]
    conditions = {each["type"] for each in found["status"]["conditions"]} - {CONDITION}
    labels = {key: value for key, value in meta["labels"].items() if key != UNFIT}
    return {
        "labels": labels,
        "annotations": meta["annotations"],
        "spec": spec,
        "taints": taints,
        "of": conditions,
    }


def is_tainted(cluster: Cluster, name: str) -> bool:
    return UNFIT in {taint["key"] for taint in node(cluster, name)["spec"].get("taints", [])}


def has_passed(cluster: Cluster, name: str) -> bool:
    state = json.loads(node(cluster, name)["metadata"]["annotations"].get(STATE, "{}"))
    return bool(state.get("passed")) or not state.get("action")


def install(space: Namespace, victim: str, run_id: int, *settings: str) -> None:
    done = [
        *QUICKLY,
        "--set",
        "device=cpu,nodeActions=taint",
        "--set-json",
        f"fleet.podTemplate={SHORT_HOUR}",
    ]
    done += ["--set-json", f'nodes=["{victim}"]', "--set-string", f"runId={run_id}", *settings]
    if run_id == 1:
        space.install("accept", "gpu-accept", *done)
    else:
        chart = str(REPO / "charts/gpu-accept")
        run(
            "helm",
            "upgrade",
            "accept",
            chart,
            "--namespace",
            space.name,
            *space.cluster.helm_image(),
            *done,
        )


@pytest.fixture
def victim(cluster: Cluster):
    name = cluster.schedulable_nodes()[-1]
    yield name
    with contextlib.suppress(AssertionError):
        cluster.kubectl("taint", "node", name, f"{UNFIT}-")
    cluster.kubectl("annotate", "node", name, f"{STATE}-")


def test_a_fault_marks_its_node_until_it_is_repaired_and_nothing_else(
    namespace: Namespace, victim: str
) -> None:
    cluster, chance = namespace.cluster, random.Random(7)
    names = cluster.schedulable_nodes()
    before = {name: others(node(cluster, name)) for name in names}

    def kill() -> None:
        if chance.random() < 0.5:
            namespace.kubectl(
                "delete", "pods", "-l", FLEET, "--grace-period=0", "--force", "--wait=false"
            )

    for turn in range(ROUNDS):
        install(namespace, victim, 3 * turn + 1, "--set", "inject=nan-product")
        kill()
        wait_until(lambda: is_tainted(cluster, victim), f"round {turn}: the node is marked", 300)
        assert [name for name in names if is_tainted(cluster, name)] == [victim]
        namespace.kubectl("apply", "-f", "-", input=program(f"next-{turn}"))
        placed = wait_until(
            lambda pod=f"next-{turn}": node_of(namespace, pod), "the next program has a node", 60
        )
        assert placed != victim
        for run_id in (3 * turn + 2, 3 * turn + 3):
            install(namespace, victim, run_id, "--set", "inject=")
            kill()
            wait_until(
                lambda run_id=run_id: passed(namespace, run_id),
                f"round {turn}: run {run_id} passed",
                300,
            )
            # The collector acts every 15 s; the next installation replaces it.
            wait_until(lambda: has_passed(cluster, victim), f"round {turn}: the pass is noted", 60)
        wait_until(
            lambda: not is_tainted(cluster, victim), f"round {turn}: the node is released", 120
        )
        assert {name: others(node(cluster, name)) for name in names} == before


def program(name: str) -> str:
    """A pod of anybody, which any node may run."""
    context = {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {
        "name": "program", "image": os.environ["SHELL_IMAGE"], "command": ["true"],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }  # fmt: skip
    spec = {"restartPolicy": "Never", "securityContext": context, "containers": [container]}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def node_of(space: Namespace, pod: str) -> str:
    return space.kubectl("get", "pod", pod, "-o", "jsonpath={.spec.nodeName}")


def passed(space: Namespace, run_id: int) -> bool:
    fleet = fleet_of(space)
    return bool(fleet) and [(run_of(n), n["verdict"]) for n in fleet["nodes"]] == [
        (str(run_id), "PASS")
    ]


def test_a_dry_run_shows_the_mark_and_leaves_the_node(namespace: Namespace, victim: str) -> None:
    cluster = namespace.cluster
    before = others(node(cluster, victim))
    install(namespace, victim, 1, "--set", "inject=nan-product,nodeActionsDryRun=true")
    fleet_when(
        namespace,
        lambda fleet: fleet["marks"] == {victim: "would taint"},
        "the page shows what it would do",
        300,
    )
    assert others(node(cluster, victim)) == before and not is_tainted(cluster, victim)
    assert STATE not in node(cluster, victim)["metadata"]["annotations"]
