"""preflight.nodeTest on real pods: an unfit node ends the start of all, new pods do not count, a
report blocks nobody.

The nodes are CPUs, so the test is a rehearsal, in which a `sitecustomize` injects a fault.
"""

from __future__ import annotations

import pytest

from tests.helpers.ddp_pods import (
    assert_verdict,
    job_ended,
    logs_by_node,
    node_pods,
    start,
    wait_for_ends,
)
from tests.helpers.group_pods import install, jobset_ends, output
from tests.helpers.kube import Namespace, wait_until

PATIENCE_S = 150  # torch is imported once more, on cores that many pods share
INJECT = "import sys\nif '--level=prolog' in sys.argv: sys.argv += ['--inject', 'nan-product']"
FAULT = f"mkdir -p /tmp/fault; cat > /tmp/fault/sitecustomize.py <<'EOF'\n{INJECT}\nEOF\nexport PYTHONPATH=/tmp/fault"
ON_NODE_1 = f'if [ "$NODE_RANK" = 1 ]; then\n{FAULT}\nfi'
AT_FIRST = f'if [ "$NODE_RANK${{GPU_CHARTS_ATTEMPTS_IGNORED:-0}}" = 10 ]; then\n{FAULT}\nfi'
AT_FIRST_IN_A_GROUP = """
import os, sys
if os.environ["NODE_RANK"] == "1" and os.environ["ATTEMPT"] == "0" and "accept-node" in sys.argv[0]:
    sys.argv += ["--inject", "nan-product"]
"""
PROGRAM = """
import os
print("runs as {RANK} of {WORLD_SIZE}".format(**os.environ), flush=True)
"""
LINE = "act=RMA kind=wrong-product"


def begin(space: Namespace, mode: str, before: str, *settings: str) -> None:
    patient = ("--set", f"timeouts.joinSeconds={PATIENCE_S}")
    mode = f"preflight.nodeTest={mode}"
    start(space, "--set", mode, *patient, *settings, program=PROGRAM, before=before)


def test_an_unfit_node_ends_all_and_new_pods_do_not_count(namespace: Namespace) -> None:
    begin(namespace, "gate", AT_FIRST)
    found = wait_for_ends(namespace, 0, 1, within_s=PATIENCE_S)
    assert_verdict(found, 72, "node-test-failed", "node 1", LINE)
    assert (
        wait_until(lambda: job_ended(namespace), "the Job ended", 2 * PATIENCE_S) == "Complete"
    ), "maxRestarts is 0"


@pytest.mark.matrix
def test_a_node_that_stays_unfit_fails_the_run_at_the_fourth_start(namespace: Namespace) -> None:
    begin(namespace, "gate", ON_NODE_1)
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 5 * PATIENCE_S) == "Failed"
    messages = [
        status["state"]["terminated"]["message"]
        for pod in node_pods(namespace)
        for status in pod["status"]["containerStatuses"]
    ]
    assert any("(restart-loop)" in message and LINE in message for message in messages), messages


@pytest.mark.parametrize("unfit", [pytest.param(0, marks=pytest.mark.matrix), 1])
def test_a_spare_takes_the_place_and_no_pod_starts_again(namespace: Namespace, unfit: int) -> None:
    begin(namespace, "gate", ON_NODE_1.replace("= 1", f"= {unfit}"), "--set", "spares=1")
    found = wait_for_ends(namespace, 0, 1, 2, within_s=2 * PATIENCE_S)
    assert [found[node].code for node in range(3)] == [0, 0, 0], found
    assert LINE in found[unfit].message, found
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 60) == "Complete"
    logs = logs_by_node(namespace)
    fit = [text for node, text in sorted(logs.items()) if node != unfit]
    assert ["runs as 0 of 2" in fit[0], "runs as 1 of 2" in fit[1]] == [True, True], logs
    assert len(node_pods(namespace)) == 3 and "runs as" not in logs[unfit]


@pytest.mark.matrix
def test_a_spare_without_room_does_not_hold_up_the_end(namespace: Namespace) -> None:
    """A node has 64 CPUs."""
    spares = len(namespace.cluster.schedulable_nodes()) - 1
    begin(namespace, "gate", "", "--set", f"spares={spares},resources.requests.cpu=40")
    wait_until(lambda: len(node_pods(namespace)) == 2 + spares, "all pods", 60)
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 2 * PATIENCE_S) == "Complete"
    ended = wait_for_ends(namespace, 0, 1, within_s=2 * PATIENCE_S)
    assert [end.code for end in ended.values()] == [0, 0], ended


def test_a_report_blocks_nobody_and_is_in_the_pod(namespace: Namespace) -> None:
    begin(namespace, "report", ON_NODE_1)
    found = wait_for_ends(namespace, 0, 1, within_s=2 * PATIENCE_S)
    assert (found[0].code, found[1].code) == (0, 0), found
    assert (
        found[0].message.startswith("PASS (CPU rehearsal)")
        and LINE in found[1].message.splitlines()[0]
    ), found


def test_a_group_starts_again_on_new_pods(namespace: Namespace) -> None:
    task = {
        "numNodes": 2,
        "launcher": "ddp-launch",
        "run": "echo runs attempt=$ATTEMPT",
        "env": {"PYTHONPATH": "/fault", "OMP_NUM_THREADS": "1"},
        "fileMounts": [
            {
                "mountPath": "/fault/sitecustomize.py",
                "files": "fault",
                "subPath": "sitecustomize.py",
            }
        ],
    }
    files = {"fault": {"sitecustomize.py": {"text": AT_FIRST_IN_A_GROUP}}}
    install(namespace, {"t": task}, files=files, preflight={"nodeTest": "gate"})
    assert jobset_ends(namespace) == "Completed", "maxRestarts is 0"
    for host in ("t-0", "t-1"):
        assert "\nruns attempt=1\n" in output(namespace, host)
