"""ddp-run with real pods: a fault while the program runs ends with one verdict on all of them, and a stop that was
saved is no failure."""

from __future__ import annotations

import pytest

from tests.helpers.ddp_pods import (
    GRACE_S,
    SILENCE_S,
    TRAIN,
    End,
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
from tests.helpers.kube import Namespace, wait_until

TOLD = "os.path.exists('/tmp/go')"
# What rank 1 does, when it is told to -> the verdict.
DURING = {
    "sys.exit(9)": (1, "program-failed", "rank 1 of node 1", "exit code 9"),
    "raise ValueError('NaN')": (1, "program-failed", "rank 1 of node 1", "ValueError: NaN"),
    "break": (1, "early-exit", "rank 1 of node 1"),
    "os.kill(os.getpid(), 9)": (1, "killed", "rank 1 of node 1", "SIGKILL"),
    "open('/out/full', 'wb').write(bytes(200 << 20))": (1, "disk-full", "rank 1 of node 1"),
    "kept = [bytearray(b'x') * (1 << 20) for _ in range(4096)]": (1, "out-of-memory", "rank 1 of node 1", "SIGKILL"),
}


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=pytest.mark.matrix if index else ()) for index, fault in enumerate(DURING)]
)
def test_a_rank_fails(namespace: Namespace, fault: str) -> None:
    program = TRAIN.replace("FAULT", f"if {TOLD}: {fault}")
    start(namespace, "--set", "resources.limits.memory=2Gi", program=program, change=small_volume)
    one_verdict(end_of_fault(namespace), *DURING[fault])


def small_volume(pod: dict, container: dict) -> None:
    """/out holds 160 MiB."""
    outputs = next(volume for volume in pod["volumes"] if volume["name"] == "outputs")
    outputs["emptyDir"] = {"medium": "Memory", "sizeLimit": "160Mi"}


def end_of_fault(space: Namespace) -> dict[int, End]:
    """How both nodes end after rank 1 was told to go wrong."""
    until_trains(space)
    begun = now()
    inside(space, 1, "touch /tmp/go")
    return ends(space, 0, 1, within_s=SILENCE_S, since=begun)


# A program of its own -> the verdict.
BEFORE_INIT = f"""
import os, sys, time
print("trains", flush=True)
while os.environ["RANK"] == "1":
    time.sleep(0.05)  # until it is told to
    if {TOLD}: sys.exit(1)
"""
IN_BACKWARD = f"""
def refuse(gradient):
    if {TOLD}: raise ValueError("NaN")
"""
BACKWARD = "w = torch.ones(1, requires_grad=True); w.register_hook(refuse); w.sum().backward()"
PROGRAMS = {
    "exits before init": (BEFORE_INIT + TRAIN, "exit code 1"),
    "raises in backward": (IN_BACKWARD + TRAIN.replace("FAULT", BACKWARD), "ValueError: NaN"),
}


@pytest.mark.matrix
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_fails(namespace: Namespace, program: str) -> None:
    text, words = PROGRAMS[program]
    start(namespace, program=text)
    one_verdict(end_of_fault(namespace), 1, "program-failed", "rank 1 of node 1", words)


@pytest.mark.matrix
def test_a_rank_is_frozen(namespace: Namespace) -> None:
    start(namespace, "--set", "timeouts.startupCollectiveSeconds=20", "--set", "timeouts.collectiveSeconds=20",
          program=TRAIN.replace("FAULT", ""))  # fmt: skip
    until_trains(namespace)
    frozen = now()
    inside(namespace, 1, "pkill -STOP -f /rank_wrapper.py")
    found = ends(namespace, 0, 1, within_s=20, since=frozen)
    one_verdict(found, 70, "collective-timeout", "rank 1 of node 1", "is stopped by a signal (SIGSTOP)")


@pytest.mark.matrix
def test_a_pod_is_killed(namespace: Namespace) -> None:
    start(namespace, program=TRAIN.replace("FAULT", ""))
    until_trains(namespace)
    victim = pod_name(namespace, 1)
    killed = now()
    namespace.kubectl("delete", "pod", victim, "--force", "--grace-period=0")
    end = ends(namespace, 0, within_s=GRACE_S, since=killed)[0]
    assert end.code in (66, 75, 143) and "node 1" in end.message, end  # killed without a word, or just after SIGTERM


@pytest.mark.matrix
@pytest.mark.parametrize("nodes", [(0,), (1,), (0, 1)], ids=["pod 0", "pod 1", "all"])
def test_a_deleted_pod_comes_back_and_the_run_starts_again(namespace: Namespace, nodes: tuple[int, ...]) -> None:
    """The program saved, so it does not count as a failure: maxRestarts is 0."""
    start(namespace, "--set", "timeouts.joinSeconds=120", program=TRAIN.replace("FAULT", ""))
    until_trains(namespace)
    names = [pod["metadata"]["name"] for pod in nodes_of(namespace) if index(pod) in nodes]
    namespace.kubectl("delete", "pod", *names, "--wait=false")
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 300) == "Complete"
