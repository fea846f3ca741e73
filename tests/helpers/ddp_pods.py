"""Runs of ddp-run on a cluster: start with an injected fault of one node, events of the run, and
how its pods end.
"""

import os
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import NamedTuple

import pytest
import yaml

from tests.helpers.kube import REPO, Namespace, run, true_conditions, wait_until
from tests.helpers.rendering import pod_templates

JOIN_TIMEOUT_S = 25
HEARTBEAT_TIMEOUT_S = 15
SLACK_S = 15  # the end of processes and of containers on two cores that five tests share
GRACE_PERIOD_S = 20  # of the program; the launcher needs the last 10 s of the pod's
# The nodes of a local cluster share the cores of one machine, and torch would start a thread per
# core in every pod.
ONE_THREAD = ["--set-string", "env.OMP_NUM_THREADS=1"]
SHORT_TIMEOUTS = [*ONE_THREAD, "--set", f"timeouts.joinSeconds={JOIN_TIMEOUT_S}"]
SHORT_TIMEOUTS += [
    "--set",
    f"timeouts.heartbeatSeconds={HEARTBEAT_TIMEOUT_S}",
    "--set",
    f"terminationGracePeriodSeconds={GRACE_PERIOD_S + 10}",
]
# Trains until SIGTERM and then saves. A later attempt ends after a few steps.
TRAIN = """
import os, signal, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
stopped = torch.zeros(1)
signal.signal(signal.SIGTERM, lambda *_: stopped.fill_(1))
attempt = int(os.environ["ATTEMPT"])
for step in range(100000):
    together = stopped.clone()
    dist.all_reduce(together)
    if together.item():
        print("saved", flush=True)
        sys.exit(75)
    if step == 5:
        print("trains", flush=True)
        if attempt:
            break
    FAULT
    time.sleep(0.05)  # the work of a step
print(f"rank {dist.get_rank()} of {dist.get_world_size()} on node {os.environ['NODE_RANK']} is done", flush=True)
dist.destroy_process_group()
"""


class End(NamedTuple):
    """How the launcher of a node ended: exit code, termination message, and when it ran."""

    code: int
    message: str
    started: datetime
    finished: datetime


def install(space: Namespace, *settings: str, release: str = "run"):
    """helm install of the chart without changes."""
    space.install(release, "ddp-run", *ONE_THREAD, *settings)


def start(
    space: Namespace,
    *settings: str,
    before: str = "",
    program: str = "",
    change: Callable[[dict, dict], None] = lambda pod, container: None,
):
    """helm template | kubectl apply, with changes.

    `before`: shell commands before the launcher. `program`: content of /tmp/train.py, which then is
    the program. `change`: gets the specs of the nodes' pod and of its container.
    """
    # A run that is meant to form a world must import torch first, which takes long on a busy
    # machine.
    patient = ["--set", "timeouts.joinSeconds=120"] if program else []
    values = [*space.cluster.helm_image(), *SHORT_TIMEOUTS, *patient, *settings]
    values += ["--set", "program.args={/tmp/train.py}"] if program else []
    rendered = run(
        "helm", "template", "run", str(REPO / "charts/ddp-run"), "--namespace", space.name, *values
    )
    objects = [item for item in yaml.safe_load_all(rendered) if item and not is_hook(item)]
    specs = [template["spec"] for template in pod_templates(objects)]
    pod = next(spec for spec in specs if spec["containers"][0]["name"] == "trainer")
    container = pod["containers"][0]
    write = f"cat > /tmp/train.py <<'END'\n{program}\nEND\n" if program else ""
    script = f'{write}{before}\nexec {" ".join(container["command"])} "$@"'
    # Kubernetes expands $(NAME) in a command and halves $$.
    container["command"] = ["bash", "-c", script.replace("$", "$$"), "launch"]
    change(pod, container)
    space.apply(yaml.safe_dump_all(objects))


def is_hook(item: dict) -> bool:
    return "helm.sh/hook" in item["metadata"].get("annotations", {})


def node_pods(space: Namespace) -> list[dict]:
    return space.objects("pods", "app.kubernetes.io/instance=run,app.kubernetes.io/component=node")


def node_pod(space: Namespace, number: int) -> dict:
    """The pod of a node, as soon as it exists."""
    return wait_until(
        lambda: next((pod for pod in node_pods(space) if node_index(pod) == number), None),
        f"pod {number}",
        60,
    )


def pod_name(space: Namespace, number: int) -> str:
    return node_pod(space, number)["metadata"]["name"]


def node_index(pod: dict) -> int:
    found = pod["metadata"].get("annotations", {}).get("batch.kubernetes.io/job-completion-index")
    return int(
        found if found is not None else pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"]
    )


def wait_for_ends(
    space: Namespace, *numbers: int, within_s: float = JOIN_TIMEOUT_S, since: datetime | None = None
) -> dict[int, End]:
    """Node index -> how the node ended, once all of `numbers` have ended.

    Each must end at most `within_s` + SLACK_S after the fault: after `since`, or else after its own
    start.
    """
    seen: dict[int, End] = {}
    timeout_s = within_s + 60
    for pod in space.watch(
        "pods", timeout_s
    ):  # not polled, because a failed Job deletes its other pods
        is_node = pod["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "node"
        if is_node and (ended := end_of_pod(pod)):
            seen[node_index(pod)] = ended
        if seen.keys() >= {*numbers}:
            break
    else:
        raise AssertionError(
            f"not within {timeout_s} s: the end of nodes {numbers}; seen: {seen}; {logs_by_node(space)}"
        )
    for number in numbers:
        took_s = (seen[number].finished - (since or seen[number].started)).total_seconds()
        assert took_s <= within_s + SLACK_S, (number, took_s, seen)
    return {number: seen[number] for number in numbers}


def now() -> datetime:
    return datetime.now(UTC)


def etcd_image() -> str:
    image = os.environ.get("ETCD_IMAGE")
    if not image:
        pytest.fail(
            "ETCD_IMAGE is not set: an image with etcd 3.4 or 3.5 that the nodes can pull",
            pytrace=False,
        )
    return image


def job_ended(space: Namespace) -> str | None:
    found = true_conditions(space.objects("jobs")[0])
    return next((kind for kind in ("Complete", "Failed") if kind in found), None)


def job_ends(space: Namespace, within_s: float = 240) -> str:
    """Complete or Failed."""
    return wait_until(lambda: job_ended(space), "the Job ended", within_s)


def completes_without(space: Namespace, number: int) -> dict[int, str]:
    """Delete the pod of a node; the run completes, and these are the logs of the pods that ended
    well, by node.
    """
    space.kubectl("delete", "pod", pod_name(space, number), "--wait=false")
    ended = job_ends(space, 300)
    pods = node_pods(space)
    assert ended == "Complete", [status["state"] for pod in pods for status in containers(pod)]
    done = [pod for pod in pods if pod["status"]["phase"] == "Succeeded"]
    return {node_index(pod): space.logs(pod, "trainer") for pod in done}


def logs_by_node(space: Namespace) -> dict[int, str]:
    """Node index -> log, of the nodes that have started."""
    started = [
        pod
        for pod in node_pods(space)
        if any("waiting" not in status["state"] for status in containers(pod))
    ]
    return {node_index(pod): space.logs(pod, "trainer") for pod in started}


def end_of_pod(pod: dict) -> End | None:
    """How a pod ended; None while it runs."""
    ended = [status["state"].get("terminated") for status in containers(pod)]
    if not ended or not ended[0]:
        return None
    times = (datetime.fromisoformat(ended[0][name]) for name in ("startedAt", "finishedAt"))
    return End(ended[0]["exitCode"], ended[0].get("message", ""), *times)


def containers(pod: dict) -> list[dict]:
    return pod["status"].get("containerStatuses", [])


def wait_until_training(space: Namespace):
    """Wait until node 1 has logged a step, which all ranks do together."""
    pod = pod_name(space, 1)
    space.kubectl("wait", f"pod/{pod}", "--for=jsonpath={.status.phase}=Running", "--timeout=60s")
    lines = []
    for line in space.lines(120, "logs", "--follow", pod, "--container=trainer"):
        lines.append(line)
        if "trains" in line:
            return
    raise AssertionError(
        f"{pod} ended, or 120 s passed, before the program ran; its log: {''.join(lines)}"
    )


def start_training(space: Namespace, *settings: str):
    """A run that trains until it is stopped."""
    start(space, *settings, program=TRAIN.replace("FAULT", ""))
    wait_until_training(space)


def exec_in_node(space: Namespace, number: int, command: str):
    space.kubectl("exec", pod_name(space, number), "-c", "trainer", "--", "bash", "-c", command)


def assert_verdict(found: dict[int, End], code: int, cause: str, *words: str):
    for node, end in found.items():
        assert end.code == code, (node, found)
        assert end.message.startswith(f"exit code {code} ({cause}): "), (node, end.message)
        for word in words:
            assert word in end.message, (node, word, end.message)


def assert_ends(space: Namespace, nodes: Iterable[int], code: int, cause: str, *words: str):
    """These nodes end with this verdict, and `kubectl runs why` repeats it."""
    assert_verdict(wait_for_ends(space, *nodes), code, cause, *words)
    assert_why(space, cause, *words)


def assert_why(space: Namespace, cause: str, *words: str):
    """`kubectl runs why` names the launcher's cause and the facts."""
    said = space.why("run")
    assert [word for word in (f"({cause})", *words) if word not in said] == [], said
