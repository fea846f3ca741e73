"""ddp-run with real pods: a fault while the program runs ends with one verdict on all of them, and a stop that was
saved is no failure."""

from __future__ import annotations

import pytest
from kube import Namespace, wait_until
from launches import (
    DEADLINE_S,
    SILENCE_S,
    TRAIN,
    ends,
    index,
    inside,
    job_ended,
    nodes_of,
    now,
    one_verdict,
    pod_name,
    start,
    until_trains,
)

IN_TIME_S = DEADLINE_S + SILENCE_S  # for a program that fails as soon as it has begun
# What rank 1 does in step 7 -> the verdict.
DURING = {
    "sys.exit(9)": (1, "failed", "rank 1 of node 1", "exit code 9"),
    "raise ValueError('NaN')": (1, "failed", "rank 1 of node 1", "ValueError: NaN"),
    "break": (1, "early-end", "rank 1 of node 1"),
    "os.kill(os.getpid(), 9)": (1, "killed", "rank 1 of node 1", "SIGKILL"),
    "open('/out/full', 'wb').write(bytes(200 << 20))": (1, "disk-full", "rank 1 of node 1"),
    "kept = [bytearray(b'x') * (1 << 20) for _ in range(4096)]": (1, "out-of-memory", "rank 1 of node 1", "SIGKILL"),
}


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=pytest.mark.matrix if index else ()) for index, fault in enumerate(DURING)]
)
def test_a_rank_fails(namespace: Namespace, fault: str) -> None:
    program = TRAIN.replace("FAULT", f"if step == 7 and dist.get_rank() == 1: {fault}")
    start(namespace, "--set", "resources.limits.memory=2Gi", program=program, change=small_volume)
    one_verdict(ends(namespace, 0, 1, within_s=IN_TIME_S), *DURING[fault])


def small_volume(pod: dict, container: dict) -> None:
    """/out holds 160 MiB."""
    outputs = next(volume for volume in pod["volumes"] if volume["name"] == "outputs")
    outputs["emptyDir"] = {"medium": "Memory", "sizeLimit": "160Mi"}


# A program of its own -> the verdict.
PROGRAMS = {
    "exits before init": ("import os, sys\nif os.environ['RANK'] == '1': sys.exit(1)\n" + TRAIN, "exit code 1"),
    "raises in backward": (
        TRAIN.replace("FAULT", "w = torch.ones(1, requires_grad=True); w.register_hook(refuse); w.sum().backward()")
        .replace("attempt = ", "def refuse(gradient):\n    if dist.get_rank(): raise ValueError('NaN')\nattempt = "),
        "ValueError: NaN",
    ),
}  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_fails(namespace: Namespace, program: str) -> None:
    text, words = PROGRAMS[program]
    start(namespace, program=text)
    one_verdict(ends(namespace, 0, 1, within_s=IN_TIME_S), 1, "failed", "rank 1 of node 1", words)


@pytest.mark.matrix
def test_a_rank_is_frozen(namespace: Namespace) -> None:
    start(namespace, "--set", "timeouts.startSeconds=20", "--set", "timeouts.workSeconds=20",
          program=TRAIN.replace("FAULT", ""))  # fmt: skip
    until_trains(namespace)
    frozen = now()
    inside(namespace, 1, "pkill -STOP -f /inside.py")
    found = ends(namespace, 0, 1, within_s=20, since=frozen)
    one_verdict(found, 70, "collective", "rank 1 of node 1", "is stopped by a signal (SIGSTOP)")


@pytest.mark.matrix
def test_a_pod_is_killed(namespace: Namespace) -> None:
    start(namespace, program=TRAIN.replace("FAULT", ""))
    until_trains(namespace)
    victim = pod_name(namespace, 1)
    killed = now()
    namespace.kubectl("delete", "pod", victim, "--force", "--grace-period=0")
    end = ends(namespace, 0, within_s=SILENCE_S, since=killed)[0]
    assert end.code in (66, 75, 143) and "node 1" in end.message, end  # killed without a word, or just after SIGTERM


@pytest.mark.matrix
@pytest.mark.parametrize("nodes", [(0,), (1,), (0, 1)], ids=["pod 0", "pod 1", "all"])
def test_a_deleted_pod_comes_back_and_the_run_starts_again(namespace: Namespace, nodes: tuple[int, ...]) -> None:
    """The program saved, so it does not count as a failure: maxRestarts is 0."""
    start(namespace, "--set", "rendezvous.timeoutSeconds=120", program=TRAIN.replace("FAULT", ""))
    until_trains(namespace)
    names = [pod["metadata"]["name"] for pod in nodes_of(namespace) if index(pod) in nodes]
    namespace.kubectl("delete", "pod", *names, "--wait=false")
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 300) == "Complete"
