"""Kueue evicts what is not ready in time (waitForPodsReady, 30 minutes by default): which groups it
leaves alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from tests.e2e.test_kueue import queue as queue  # a fixture
from tests.helpers.group_pods import launch, output
from tests.helpers.kube import Cluster, Namespace, phases, wait_until

pytestmark = pytest.mark.matrix

TIMEOUT_S = 60
CONFIG = ("--namespace", "kueue-system")
# `early` is done at once or soon, `late` runs for longer than the time-out, and `after` is held
# back for as long.
GROUP = f"""\
---
name: grp
execution: parallel
---
name: early
run: sleep EARLY
---
name: late
run: sleep {TIMEOUT_S + 40}
---
name: after
run: echo done
"""


def configure(cluster: Cluster, recovery: str) -> str:
    """Give Kueue these time-outs and return what its ConfigMap was."""
    name, key = "configmap/kueue-manager-config", "controller_manager_config.yaml"
    old = cluster.kubectl(
        *CONFIG, "get", name, "-o", f"jsonpath={{.data.{key.replace('.', chr(92) + '.')}}}"
    )
    setting = f"waitForPodsReady: {{timeout: {TIMEOUT_S}s, recoveryTimeout: {recovery}}}\n"
    store(
        cluster,
        re.sub(r"^waitForPodsReady:.*\n", "", old, flags=re.MULTILINE).rstrip() + "\n" + setting,
    )
    return old


def store(cluster: Cluster, text: str) -> None:
    indented = "".join(f"    {line}\n" for line in text.splitlines())
    manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kueue-manager-config, namespace: kueue-system}\n"
    manifest += f"data:\n  controller_manager_config.yaml: |\n{indented}"
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=manifest)
    cluster.kubectl(*CONFIG, "rollout", "restart", "deployment/kueue-controller-manager")
    cluster.kubectl(
        *CONFIG, "rollout", "status", "deployment/kueue-controller-manager", "--timeout=120s"
    )


@pytest.fixture(scope="module")
def settings(cluster: Cluster) -> Iterator[list[str]]:
    """Time-outs that tests may change; Kueue gets its own back."""
    old = configure(cluster, f"{TIMEOUT_S}s")
    yield []
    store(cluster, old)


def evictions(space: Namespace) -> list[str]:
    """Reasons for which Kueue took the place of the group away."""
    found = [
        event["message"]
        for event in space.objects("events")
        if event["reason"].startswith("Evicted")
    ]
    for workload in space.objects("workloads.kueue.x-k8s.io"):
        conditions = workload.get("status", {}).get("conditions", [])
        found += [
            each["message"]
            for each in conditions
            if each["type"] == "Evicted" and each["status"] == "True"
        ]
    return found


def start(space: Namespace, workload: str, early_s: int = 0) -> None:
    chosen = f"kueue.queueName=queue,workload={workload},tasks.after.dependsOn.late=done"
    launch(space, GROUP.replace("EARLY", str(early_s)), "--set", chosen)


def assert_ends_without_eviction(space: Namespace) -> None:
    began = time.monotonic()

    def ended() -> bool:
        assert not evictions(space)
        found = phases(space.pods("grp"))
        return len(found) == 3 and set(found.values()) <= {"Succeeded", "Failed"}

    wait_until(ended, "the group has ended", 300)
    assert time.monotonic() - began > TIMEOUT_S, "the group ended before Kueue's time-out"
    assert set(phases(space.pods("grp")).values()) == {"Succeeded"}, space.why("grp")
    assert "done" in output(space, "after-0")


@pytest.mark.parametrize("queue", [9], indirect=True)
def test_a_jobset_with_a_rank_that_is_done_is_not_evicted(settings, queue: Namespace) -> None:
    start(queue, "jobset")
    assert_ends_without_eviction(queue)


@pytest.mark.parametrize("queue", [9], indirect=True)
def test_of_a_pod_group_a_rank_that_is_done_counts_as_lost_and_why_says_so(
    settings, queue: Namespace
) -> None:
    """Kueue takes a pod that has succeeded for one that is not ready: docs/clusters.md says what to
    do.
    """
    start(queue, "jobs")
    wait_until(lambda: evictions(queue), "Kueue evicts the pod group", 240)
    assert any("PodsReady" in message for message in evictions(queue))


@pytest.mark.parametrize("queue", [9], indirect=True)
def test_without_a_recovery_time_out_ranks_may_end_once_all_were_ready(
    settings, cluster, queue: Namespace
) -> None:
    configure(cluster, "0s")
    start(queue, "jobs", early_s=20)
    assert_ends_without_eviction(queue)
