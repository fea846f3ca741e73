"""Pods that are not of a release cannot reach its ports where the network enforces NetworkPolicies.

One stranger is in the namespace of the releases, one in another. The control: with the policy off,
the same connections open, and what strangers then send neither ends nor holds a run.
"""

from collections.abc import Iterator

import pytest

from hack.cluster_mode import Mode, mode
from tests.e2e.test_gpu_accept import accept, passes
from tests.helpers.ddp_pods import TRAIN, job_ends, node_pod, start, wait_until_training
from tests.helpers.group_pods import install, rank
from tests.helpers.kube import Namespace, new_namespace, start_pod, wait_until

pytestmark = pytest.mark.skipif(
    mode() is not Mode.LOCAL, reason="only the local cluster surely enforces policies"
)
GARBAGE = 'b\'\\x00\\xff\' * 4000 + b\'{"type": "done", "exit_code": 1}\\n\' * 50'
CONNECT = """
import socket, sys
for port in map(int, sys.argv[2].split(",")):
    try:
        with socket.create_connection((sys.argv[1], port), timeout=3) as connection:
            connection.sendall(GARBAGE)
            print(port, "open")
    except OSError:
        print(port, "closed")
""".replace("GARBAGE", GARBAGE)
WORLD_PORTS, AGENT_PORT, REPORT_PORT = (29500, 29501), 29499, 8080
TRAINS_A_WHILE = TRAIN.replace("FAULT", "if step == 400: break")  # long enough to be attacked
WAITS = "echo serving; until [ -e /tmp/end ]; do sleep 0.2; done"


def stranger(space: Namespace) -> Namespace:
    """A pod without labels of a release, in the worker image."""
    start_pod(space, "stranger", ["sleep", "600"], terminationGracePeriodSeconds=0)
    space.kubectl("wait", "pod/stranger", "--for=condition=Ready", "--timeout=60s")
    return space


@pytest.fixture
def strangers(namespace, cluster) -> Iterator[list[Namespace]]:
    with new_namespace(cluster) as other:
        yield [stranger(namespace), stranger(other)]


def tries(
    space: Namespace, address: str, *ports: int, pod: str = "stranger", container: str = ""
) -> dict[int, str]:
    """What becomes of a connection from a pod to each port."""
    wanted = ",".join(map(str, ports))
    output = space.kubectl(
        "exec", pod, "-c", container or "main", "--", "python3", "-c", CONNECT, address, wanted
    )
    return {int(port): state for port, state in (line.split() for line in output.splitlines())}


def address_of(pod: dict) -> str:
    return pod["status"]["podIP"]


def test_only_pods_of_a_run_reach_its_world(namespace, strangers):
    start(namespace, program=TRAINS_A_WHILE)
    wait_until_training(namespace)
    first, second = node_pod(namespace, 0), node_pod(namespace, 1)
    for space in strangers:
        assert set(tries(space, address_of(first), *WORLD_PORTS).values()) == {"closed"}
    assert job_ends(namespace, 200) == "Complete", second["metadata"]["name"]


def test_with_the_policy_off_strangers_reach_the_launcher_and_change_nothing(namespace, strangers):
    start(namespace, "--set", "networkPolicy.enabled=false", program=TRAINS_A_WHILE)
    wait_until_training(namespace)
    launcher = WORLD_PORTS[1]  # PyTorch's own store trusts whoever connects: docs/security.md
    for space in strangers:
        assert tries(space, address_of(node_pod(namespace, 0)), launcher) == {launcher: "open"}
    assert job_ends(namespace, 200) == "Complete"


def test_only_ranks_of_a_group_reach_its_agents(namespace, strangers):
    """With the policy off a stranger connects, and the group still ends as it should."""
    tasks = {"client": {"run": WAITS}, "server": {"run": WAITS}}
    for policy in ("true", "false"):
        release = f"grp-{policy}"
        install(
            namespace,
            tasks,
            "--set",
            f"networkPolicy.enabled={policy}",
            release=release,
            name=f"two-{policy}",
        )

        def pods(release=release):
            found = [rank(namespace, host, release) for host in ("client-0", "server-0")]
            ready = [pod for pod in found if pod and "serving" in text_of(namespace, pod)]
            return ready if len(ready) == len(found) else []

        client, server = wait_until(pods, "both ranks serve", 120)
        for space in strangers:
            state = "closed" if policy == "true" else "open"
            assert tries(space, address_of(server), AGENT_PORT) == {AGENT_PORT: state}
        # The message of another rank's task is refused, and its connection is not.
        friend = {"pod": client["metadata"]["name"], "container": "task"}
        assert tries(namespace, address_of(server), AGENT_PORT, **friend) == {AGENT_PORT: "open"}
        for pod in (client, server):
            namespace.kubectl(
                "exec", pod["metadata"]["name"], "-c", "task", "--", "touch", "/tmp/end"
            )
        ends = namespace.wait_for_end(release, 2, 60)
        assert {pod["status"]["phase"] for pod in ends} == {"Succeeded"}


def text_of(space: Namespace, pod: dict) -> str:
    started = pod["status"].get("containerStatuses", [{}])[0].get("state", {}).keys() & {"running"}
    return space.logs(pod, "task") if started else ""


def test_only_pods_of_an_acceptance_reach_reports_and_page(namespace, strangers):
    accept(namespace)
    passes(namespace)
    for pod in namespace.pods("accept"):
        for space in strangers:
            assert tries(space, address_of(pod), REPORT_PORT) == {REPORT_PORT: "closed"}
