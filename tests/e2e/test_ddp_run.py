"""ddp-run with real pods: worlds form in every workload and backend, and every fault ends with one verdict on all pods.

A fault of one node is a line of shell before the launcher, in the manifests that the chart renders.
"""

from __future__ import annotations

import os
import re
import time

import pytest
import yaml
from kube import REPO, Namespace, run, wait_until

DEADLINE_S = 25
FAST = ["--set", f"rendezvous.timeoutSeconds={DEADLINE_S}", "--set", "timeouts.silenceSeconds=15"]
FAST += ["--set", "terminationGracePeriodSeconds=30"]
# Trains until /tmp/end exists; on SIGTERM it saves. After a restart it ends at once.
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
    time.sleep(0.05)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} on node {os.environ['NODE_RANK']} is done", flush=True)
dist.destroy_process_group()
"""


def start(space: Namespace, *settings: str, before: str = "", program: str = "") -> None:
    """helm template | kubectl apply, with shell before the launcher; `program` is what /tmp/train.py holds."""
    values = [*space.cluster.helm_image(), *FAST, *settings]
    values += ["--set", "program.args={/tmp/train.py}"] if program else []
    rendered = run("helm", "template", "run", str(REPO / "charts/ddp-run"), "--namespace", space.name, *values)
    objects = [item for item in yaml.safe_load_all(rendered) if item]
    container = next(
        pod["containers"][0] for item in objects for pod in pod_specs(item) if pod["containers"][0]["name"] == "trainer"
    )
    write = f"cat > /tmp/train.py <<'END'\n{program}\nEND\n" if program else ""
    script = f'{write}{before}\nexec {" ".join(container["command"])} "$@"'
    # Kubernetes expands $(NAME) in a command and halves $$.
    container["command"] = ["bash", "-c", script.replace("$", "$$"), "launch"]
    space.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(objects))


def pod_specs(node: object) -> list[dict]:
    if isinstance(node, dict):
        found = [node] if "containers" in node else []
        return found + [spec for value in node.values() for spec in pod_specs(value)]
    return [spec for value in node for spec in pod_specs(value)] if isinstance(node, list) else []


def nodes_of(space: Namespace) -> list[dict]:
    return space.objects("pods", "app.kubernetes.io/instance=run,app.kubernetes.io/component=node")


def index(pod: dict) -> int:
    found = pod["metadata"].get("annotations", {}).get("batch.kubernetes.io/job-completion-index")
    return int(found if found is not None else pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"])


def ends(space: Namespace, expected: int, deadline_s: float = DEADLINE_S + 60) -> dict[int, tuple[int, str]]:
    """Index -> exit code and verdict."""
    seen: dict[int, tuple[int, str]] = {}
    for pod in space.watch("pods", deadline_s):  # not by looking now and then: a failed Job deletes its other pods
        if pod["metadata"]["labels"].get("app.kubernetes.io/component") == "node":
            for status in containers(pod):
                if over := status["state"].get("terminated"):
                    seen[index(pod)] = (over["exitCode"], over.get("message", ""))
        if len(seen) >= expected:
            return seen
    raise AssertionError(f"not within {deadline_s} s: the end of {expected} pods; seen: {seen}; {said(space)}")


def job_ended(space: Namespace) -> str | None:
    conditions = space.objects("jobs")[0].get("status", {}).get("conditions", [])
    return next((c["type"] for c in conditions if c["type"] in ("Complete", "Failed") and c["status"] == "True"), None)


def said(space: Namespace) -> dict[int, str]:
    """What the nodes have printed that have started."""
    started = [pod for pod in nodes_of(space) if any("waiting" not in status["state"] for status in containers(pod))]
    return {index(pod): space.logs(pod["metadata"]["name"], "trainer") for pod in started}


def containers(pod: dict) -> list[dict]:
    return pod["status"].get("containerStatuses", [])


def until_trains(space: Namespace, count: int = 2) -> None:
    def all_train() -> bool:
        pods = [pod for pod in nodes_of(space) if pod["status"]["phase"] == "Running"]
        return len(pods) == count and all("trains" in space.logs(p["metadata"]["name"], "trainer") for p in pods)

    wait_until(all_train, "the program runs", 120)


def inside(space: Namespace, node: int, command: str) -> None:
    pod = next(pod for pod in nodes_of(space) if index(pod) == node)
    space.kubectl("exec", pod["metadata"]["name"], "-c", "trainer", "--", "bash", "-c", command)


def one_verdict(found: dict[int, tuple[int, str]], code: int, cause: str, *words: str) -> None:
    for node, (exit_code, message) in found.items():
        assert exit_code == code, (node, found)
        assert message.startswith(f"exit code {code} ({cause}): "), (node, message)
        for word in words:
            assert word in message, (node, word, message)


# -- worlds that form


@pytest.mark.parametrize("backend", ["c10d", "static"])
@pytest.mark.parametrize("nodes", [2, pytest.param(4, marks=pytest.mark.matrix)])
def test_a_world_forms(namespace: Namespace, nodes: int, backend: str) -> None:
    settings = [f"nodes={nodes}", "procsPerNode=2", f"rendezvous.backend={backend}"]
    namespace.install("run", "ddp-run", *(word for setting in settings for word in ("--set", setting)))
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 240) == "Complete"
    ranks = set()
    for node, text in said(namespace).items():
        for phase in ("resolve", "interface", '"master ready, preflight"', '"world formed"', '"process group"'):
            assert f"[DDP] node={node} phase={phase} " in text, text
        assert "first_step=done" in text and f"[DONE] node={node} world={2 * nodes} " in text
        found = set(map(int, re.findall(r"\[DDP\] node=\d+ rank=(\d+) world=\d+ nodes=\d+ .* ok=true", text)))
        assert found == {2 * node, 2 * node + 1}, "rank follows node index"
        ranks |= found
    assert ranks == set(range(2 * nodes))


@pytest.mark.matrix
def test_etcd(namespace: Namespace) -> None:
    image = os.environ.get("ETCD_IMAGE")
    if not image:
        pytest.fail("ETCD_IMAGE is not set: an image with etcd 3.4 or 3.5 that the nodes can pull", pytrace=False)
    settings = ["rendezvous.backend=etcd", "rendezvous.etcd.deploy=true", f"rendezvous.etcd.image={image}"]
    namespace.install("run", "ddp-run", "--set", "procsPerNode=2", *(w for s in settings for w in ("--set", s)))
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 240) == "Complete"
    assert all("phase=etcd " in text and "[DONE]" in text for text in said(namespace).values())


@pytest.mark.matrix
def test_ranks_are_indexes_with_twelve_pods(namespace: Namespace) -> None:
    program = TRAIN.replace("FAULT", "if step == 6: break")
    start(namespace, "--set", "nodes=12", "--set", "placement.onePodPerNode=any", "--set",
          "rendezvous.timeoutSeconds=180", program=program)  # fmt: skip
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 400) == "Complete"
    for node, text in said(namespace).items():
        assert f"rank {node} of 12 on node {node} is done" in text


@pytest.mark.matrix
def test_a_statefulset_parks(namespace: Namespace) -> None:
    namespace.install("run", "ddp-run", "--set", "workload=statefulset")
    wait_until(lambda: [t for t in said(namespace).values() if "[PARKED]" in t][1:], "both pods are parked", 240)
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
    namespace.install(
        "run", "ddp-run", "--set", f"program.image={namespace.cluster.image}",
        "--set", "program.args={-m,gpuworker.accept.ddp_tests,--numel,1000,--report-dir,/out}",
    )  # fmt: skip
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 240) == "Complete"


@pytest.mark.matrix
def test_a_bare_torchrun(namespace: Namespace) -> None:
    namespace.install("run", "ddp-run", "--set", "launcher=torchrun")
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 240) == "Complete"


@pytest.mark.matrix
def test_node_0_starts_late(namespace: Namespace) -> None:
    start(namespace, "--set", "rendezvous.timeoutSeconds=120", before='[ "$NODE_RANK" != 0 ] || sleep 60')
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 300) == "Complete"


# -- faults before the world is formed

ODD = '[ "$NODE_RANK" != 1 ] || '
LISTEN = (
    "import socket, time\ns = socket.create_server(('', 29501))\nkept = []\nwhile True:\n    c = s.accept()[0]\n    "
)
BEFORE = {
    "the name does not resolve": ("export MASTER_ADDR=nobody.invalid", 64, "no-name", "nobody.invalid did not resolve"),
    "the name is that of a Service": ("export MASTER_ADDR=kubernetes.default.svc", 64, "wrong-name", "no such address"),
    "another number of nodes": (ODD + "export NNODES=3", 67, "differ", "nodes: node 1"),
    "another number of processes": (ODD + "export NPROC_PER_NODE=2", 67, "differ", "processes: node 1"),
    "another image": (ODD + "export IMAGE=other", 67, "differ", "image: node 1"),
    "fewer GPUs": (ODD + "export NUM_GPUS_PER_NODE=1", 67, "unfit", "node 1"),
    "another torch": (
        ODD + "{ mkdir -p /tmp/x/torch; touch /tmp/x/torch/__init__.py; "
        "echo \"__version__ = '1.0'\" > /tmp/x/torch/version.py; export PYTHONPATH=/tmp/x; }",
        67, "differ", "torch: node 1",
    ),
    "a wrong interface": (ODD + "export GLOO_SOCKET_IFNAME=eth99", 68, "interface", "node 1", "eth99"),
}  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize("fault", BEFORE)
def test_a_fault_before_the_start(namespace: Namespace, fault: str) -> None:
    before, code, cause, *words = BEFORE[fault]
    start(namespace, before=before)
    if cause == "wrong-name":  # only node 0 can know; the Job then ends the others, to whom that address is silent
        one_verdict({0: ends(namespace, 1)[0]}, code, cause, *words)
    else:
        words = [word for word in words if word != "node 1" or cause != "interface"]
        one_verdict(ends(namespace, 2), code, cause, *words)
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 60) == "Failed"


# What is on node 0's port in place of the launcher -> the row of the table.
STRANGERS = {
    "nothing": ("sleep 600", "refused"),
    "an HTTP server": ("exec python3 -m http.server 29501", "stranger"),
    "a silent one": (f"exec python3 -c \"{LISTEN}kept.append(c)\"", "silent"),
    "a proxy without its master": (f"exec python3 -c \"{LISTEN}c.close()\"", "closes"),
}  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_on_node_0(namespace: Namespace, stranger: str) -> None:
    command, cause = STRANGERS[stranger]
    start(namespace, before=f'[ "$NODE_RANK" != 0 ] || {{ {command}; }}')
    one_verdict({1: ends(namespace, 1)[1]}, 65, cause, "node 0 at run-ddp-run-")


@pytest.mark.matrix
def test_a_node_that_cannot_be_scheduled(namespace: Namespace) -> None:
    nodes = len(namespace.cluster.schedulable_nodes()) + 1
    start(namespace, "--set", f"nodes={nodes}", "--set", "placement.onePodPerNode=required")
    found = ends(namespace, nodes - 1)
    (absent,) = set(range(nodes)) - set(found)
    if absent:
        one_verdict(found, 66, "missing", f"node {absent} did not come")
    else:  # it is the master itself; it may still come, in the room of the first that gave up
        assert {code for code, _ in found.values()} <= {64, 65, 66}


@pytest.mark.matrix
def test_too_little_shared_memory(namespace: Namespace) -> None:
    start(namespace, "--set", "sharedMemory.sizeLimit=64Mi")
    one_verdict(ends(namespace, 2), 67, "unfit", "/dev/shm has 64Mi, at least 1Gi expected")


# -- faults while it runs


# What rank 1 does in step 7 -> the verdict.
DURING = {
    "sys.exit(9)": (1, "failed", "rank 1 of node 1", "exit code 9"),
    "raise ValueError('NaN')": (1, "failed", "rank 1 of node 1", "ValueError: NaN"),
    "break": (1, "early-end", "rank 1 of node 1"),
    "os.kill(os.getpid(), 9)": (1, "killed", "rank 1 of node 1", "SIGKILL"),
    "raise OSError(28, 'No space left on device')": (1, "disk-full", "rank 1 of node 1"),
}


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=pytest.mark.matrix if index else ()) for index, fault in enumerate(DURING)]
)
def test_a_rank_fails(namespace: Namespace, fault: str) -> None:
    start(namespace, program=TRAIN.replace("FAULT", f"if step == 7 and dist.get_rank() == 1: {fault}"))
    one_verdict(ends(namespace, 2), *DURING[fault])


@pytest.mark.matrix
def test_a_rank_is_frozen(namespace: Namespace) -> None:
    start(namespace, "--set", "timeouts.startSeconds=20", "--set", "timeouts.workSeconds=20",
          program=TRAIN.replace("FAULT", ""))  # fmt: skip
    until_trains(namespace)
    inside(namespace, 1, "pkill -STOP -f /inside.py")
    one_verdict(ends(namespace, 2), 70, "collective", "rank 1 of node 1", "is stopped by a signal (SIGSTOP)")


@pytest.mark.matrix
def test_a_pod_is_killed(namespace: Namespace) -> None:
    start(namespace, program=TRAIN.replace("FAULT", ""))
    until_trains(namespace)
    victim = next(pod for pod in nodes_of(namespace) if index(pod) == 1)["metadata"]["name"]
    namespace.kubectl("delete", "pod", victim, "--force", "--grace-period=0")
    code, message = ends(namespace, 1)[0]
    assert code in (66, 75, 143) and "node 1" in message, message  # killed without a word, or just after SIGTERM


@pytest.mark.matrix
@pytest.mark.parametrize("nodes", [(0,), (1,), (0, 1)], ids=["pod 0", "pod 1", "all"])
def test_a_deleted_pod_comes_back_and_the_run_starts_again(namespace: Namespace, nodes: tuple[int, ...]) -> None:
    """The program saved, so it does not count as a failure: maxRestarts is 0."""
    start(namespace, "--set", "rendezvous.timeoutSeconds=120", program=TRAIN.replace("FAULT", ""))
    until_trains(namespace)
    names = [pod["metadata"]["name"] for pod in nodes_of(namespace) if index(pod) in nodes]
    namespace.kubectl("delete", "pod", *names, "--wait=false")
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 300) == "Complete"


@pytest.mark.matrix
def test_sigterm_while_waiting(namespace: Namespace) -> None:
    start(namespace, "--set", "rendezvous.timeoutSeconds=300", before='[ "$NODE_RANK" != 0 ] || sleep 600')
    wait_until(lambda: "phase=interface" in said(namespace).get(1, ""), "node 1 waits", 120)
    begun = time.monotonic()
    victim = next(pod for pod in nodes_of(namespace) if index(pod) == 1)["metadata"]["name"]
    namespace.kubectl("delete", "pod", victim, "--wait=true")
    assert time.monotonic() - begun < 15, "it does not use up its grace period"
