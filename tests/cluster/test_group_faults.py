"""A group whose cluster is out of order for a time: no API server, no DNS, no network, or no
controllers.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator

import pytest

from hack.local_cluster.settings import nodes
from tests.cluster.test_disruption import prefers
from tests.helpers.cluster_faults import cut_network, frozen
from tests.helpers.group_pods import execute, jobset_ends, output, rank, started_at, wait_for_output
from tests.helpers.kube import Namespace, phases, wait_until

pytestmark = pytest.mark.matrix
BREAK_S = 30  # duration of a fault; the test sleeps, because nothing may happen meanwhile
HOSTS = ("client-0", "server-0")
CONTROLLERS = {"jobset-system": "jobset-controller", "kueue-system": "kueue-controller-manager"}
# Each rank ends by a file of its own, without kubectl, which needs the API server.
RUN = """\
echo serving
until [ -e /tmp/end ] || [ "$SECONDS" -gt %d ]; do sleep 0.2; done
getent ahostsv4 "$OTHER" > /dev/null && echo found the other
"""
GROUP = {
    "schemaVersion": 1,
    "name": "two",
    "tasks": {
        task: {"run": RUN % 600, "podTemplate": prefers(node), "env": {"OTHER": f"{other}-0.two"}}
        for (task, other), node in zip(
            (("client", "server"), ("server", "client")), nodes(), strict=True
        )
    },
}


def start(space: Namespace, run_s: int = 600, **tasks: dict) -> None:
    ours = {
        name: task | {"run": RUN % run_s} | tasks.get(name, {})
        for name, task in GROUP["tasks"].items()
    }
    space.install("grp", "job-group", values=json.dumps(GROUP | {"tasks": ours}))


def identities(space: Namespace) -> dict[str, str]:
    return {host: rank(space, host)["metadata"]["uid"] for host in HOSTS}


def both_serve(space: Namespace) -> dict[str, str]:
    for host in HOSTS:
        wait_for_output(space, host, "serving")
    return identities(space)


def ends_untouched(space: Namespace, before: dict[str, str]) -> None:
    assert jobset_ends(space) == "Completed", space.why("grp")
    assert identities(space) == before
    assert phases(space.pods("grp")) == dict.fromkeys(HOSTS, "Succeeded")
    assert space.objects("jobset")[0]["status"].get("restarts", 0) == 0
    assert all("found the other" in output(space, host) for host in HOSTS)


@contextlib.contextmanager
def without_controllers(space: Namespace) -> Iterator[None]:
    """JobSet's and Kueue's controllers, with their webhooks, are gone."""

    def scale(replicas: int) -> None:
        for where, name in CONTROLLERS.items():
            space.cluster.kubectl(
                "-n", where, "scale", f"deployment/{name}", f"--replicas={replicas}"
            )

    def pods() -> str:
        found = [
            space.cluster.kubectl("-n", where, "get", "pods", "-o", "name") for where in CONTROLLERS
        ]
        return "".join(found)

    scale(0)
    try:
        wait_until(lambda: not pods(), "the controllers are gone", 60)
        yield
    finally:
        scale(1)
        for where, name in CONTROLLERS.items():
            space.cluster.kubectl(
                "-n", where, "rollout", "status", f"deployment/{name}", "--timeout=120s"
            )


def end(space: Namespace) -> None:
    for host in HOSTS:
        execute(space, host, "touch", "/tmp/end")


def test_a_group_runs_and_ends_without_the_api_server(namespace: Namespace) -> None:
    start(namespace, run_s=BREAK_S - 10)
    before = both_serve(namespace)
    with frozen("apiserver"):
        time.sleep(BREAK_S)
    ends_untouched(namespace, before)


def without(space: Namespace, unit: str) -> contextlib.AbstractContextManager[None]:
    """The network between the ranks is cut, or the unit frozen."""
    addresses = {
        node: rank(space, host)["status"]["podIP"]
        for node, host in zip(nodes(), HOSTS, strict=True)
    }
    return cut_network(addresses) if unit == "network" else frozen(unit)


@pytest.mark.parametrize("unit", ["coredns", "network"])
def test_a_running_group_survives_without(namespace: Namespace, unit: str) -> None:
    start(namespace)
    before = both_serve(namespace)
    with without(namespace, unit):
        time.sleep(BREAK_S)
    end(namespace)
    ends_untouched(namespace, before)


@pytest.mark.parametrize("unit", ["coredns", "network"])
def test_a_forming_group_waits_without(namespace: Namespace, unit: str) -> None:
    """The client's setup lasts until the fault; then the server waits for it at the barrier."""
    start(namespace, client={"setup": "until [ -e /tmp/go ]; do sleep 0.2; done"})
    wait_until(
        lambda: phases(namespace.pods("grp")) == dict.fromkeys(HOSTS, "Running"),
        "both pods run",
        60,
    )
    with without(namespace, unit):
        execute(namespace, "client-0", "touch", "/tmp/go")
        time.sleep(BREAK_S)
        before = identities(namespace)
    assert both_serve(namespace) == before
    assert abs(started_at(namespace, "client-0") - started_at(namespace, "server-0")) < 10
    end(namespace)
    ends_untouched(namespace, before)


def test_a_group_runs_and_ends_without_controllers(namespace: Namespace) -> None:
    start(namespace)
    before = both_serve(namespace)
    with without_controllers(namespace):
        end(namespace)
        wait_until(
            lambda: set(phases(namespace.pods("grp")).values()) == {"Succeeded"},
            "the ranks end",
            60,
        )
    ends_untouched(namespace, before)


def test_a_rank_that_fails_without_controllers_fails_the_group_afterwards(
    namespace: Namespace,
) -> None:
    start(
        namespace, server={"run": "echo serving; until [ -e /tmp/end ]; do sleep 0.2; done; exit 7"}
    )
    both_serve(namespace)
    with without_controllers(namespace):
        execute(namespace, "server-0", "touch", "/tmp/end")
        wait_until(
            lambda: phases(namespace.pods("grp")).get("server-0") == "Failed",
            "the server fails",
            60,
        )
    assert jobset_ends(namespace) == "Failed"
    assert "server-0" in namespace.why("grp")
