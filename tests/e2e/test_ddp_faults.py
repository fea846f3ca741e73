"""ddp-run with real pods: a fault during the run ends all of them with one verdict, and a stop
after which the program saved is not counted as a failure.
"""

import pytest

from tests.helpers.ddp_pods import (
    GRACE_PERIOD_S,
    HEARTBEAT_TIMEOUT_S,
    TRAIN,
    End,
    assert_verdict,
    assert_why,
    exec_in_node,
    job_ends,
    node_index,
    node_pods,
    now,
    pod_name,
    start,
    start_training,
    wait_for_ends,
    wait_until_training,
)
from tests.helpers.kube import Namespace

FAULT_REQUESTED = "os.path.exists('/tmp/go')"
# Statement of rank 1 when the fault is requested -> code, cause and facts of the verdict.
FAULTS = {
    "sys.exit(9)": (1, "program-failed", "rank 1 of node 1", "exit code 9"),
    "raise ValueError('NaN')": (1, "program-failed", "rank 1 of node 1", "ValueError: NaN"),
    "break": (1, "early-exit", "rank 1 of node 1"),
    "os.kill(os.getpid(), 9)": (1, "killed", "rank 1 of node 1", "SIGKILL"),
    "open('/out/full', 'wb').write(bytes(200 << 20))": (1, "disk-full", "rank 1 of node 1"),
    "kept = [bytearray(b'x') * (1 << 20) for _ in range(4096)]": (
        1,
        "out-of-memory",
        "rank 1 of node 1",
        "SIGKILL",
    ),
}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=pytest.mark.matrix if index else ())
        for index, fault in enumerate(FAULTS)
    ],
)
def test_a_rank_that_fails_is_named(namespace, fault):
    program = TRAIN.replace("FAULT", f"if {FAULT_REQUESTED}: {fault}")
    start(namespace, "--set", "resources.limits.memory=2Gi", program=program, change=small_volume)
    code, *named = FAULTS[fault]
    assert_verdict(end_of_fault(namespace), code, *named)
    assert_why(namespace, *named)


def small_volume(pod: dict, container: dict):
    """/out holds 160 MiB."""
    outputs = next(volume for volume in pod["volumes"] if volume["name"] == "outputs")
    outputs["emptyDir"] = {"medium": "Memory", "sizeLimit": "160Mi"}


def end_of_fault(space: Namespace) -> dict[int, End]:
    """How both nodes end after the fault of rank 1 was requested."""
    wait_until_training(space)
    exec_in_node(space, 1, "touch /tmp/go")  # takes seconds of its own on a busy machine
    return wait_for_ends(space, 0, 1, within_s=HEARTBEAT_TIMEOUT_S, since=now())


@pytest.mark.matrix
def test_a_frozen_rank_is_named(namespace):
    start_training(namespace, "--set", "timeouts.collectiveSeconds=20")
    frozen = now()
    exec_in_node(namespace, 1, "kill -STOP $(pgrep -f '[p]ython.* -u ')")
    found = wait_for_ends(namespace, 0, 1, within_s=20, since=frozen)
    assert_verdict(
        found, 70, "collective-timeout", "rank 1 of node 1", "is stopped by a signal (SIGSTOP)"
    )
    assert_why(
        namespace, "collective-timeout", "rank 1 of node 1", "is stopped by a signal (SIGSTOP)"
    )


@pytest.mark.matrix
def test_a_pod_killed_without_grace_is_named(namespace):
    start_training(namespace)
    victim = pod_name(namespace, 1)
    killed = now()
    namespace.kubectl("delete", "pod", victim, "--force", "--grace-period=0")
    end = wait_for_ends(namespace, 0, within_s=GRACE_PERIOD_S, since=killed)[0]
    assert end.code in (71, 75, 143) and "node 1" in end.message, (
        end
    )  # killed without a report, or just after SIGTERM


@pytest.mark.matrix
@pytest.mark.parametrize("nodes", [(0,), (1,), (0, 1)], ids=["pod 0", "pod 1", "all"])
def test_a_run_starts_again_after_a_pod_was_deleted(namespace, nodes):
    """maxRestarts is 0, but the program saved, so the stop is not counted as a failure."""
    start_training(namespace, "--set", "timeouts.joinSeconds=120")
    names = [pod["metadata"]["name"] for pod in node_pods(namespace) if node_index(pod) in nodes]
    namespace.kubectl("delete", "pod", *names, "--wait=false")
    assert job_ends(namespace, 300) == "Complete"
