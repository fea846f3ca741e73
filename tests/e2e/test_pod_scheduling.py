"""Values that decide where pods run, for how long, and what becomes of them: priority, place,
deadline, TTL, memory.
"""

import json

import pytest

from tests.e2e.test_group_preemption import priority as priority  # a fixture
from tests.e2e.test_group_preemption import scarce as scarce  # a fixture
from tests.e2e.test_kueue_runs import complete
from tests.helpers.ddp_pods import ONE_THREAD, node_pods, start_training
from tests.helpers.kube import Namespace, racks, true_conditions, wait_until
from tests.helpers.rendering import sets

FOREVER = "until [ -e /tmp/end ]; do sleep 0.2; done"


def group(**tasks: dict) -> str:
    return json.dumps({"schemaVersion": 1, "name": "grp", "tasks": tasks})


def test_a_run_of_higher_priority_takes_the_place_of_another_which_goes_on_later(
    namespace, scarce, priority
):
    """The run that gives way saves, and counts no failure: its maxRestarts is 0."""
    one = sets(resources={"limits": {scarce: 1}}, placement={"onePodPerNode": "any"})
    start_training(namespace, *one, "--set", "timeouts.joinSeconds=300")
    namespace.install(
        "strong", "ddp-run", *ONE_THREAD, *one, "--set", f"nodes=1,priorityClassName={priority}"
    )
    wait_until(lambda: complete(namespace, "strong"), "the stronger run has ended", 180)
    assert "Preempted" in {event["reason"] for event in namespace.objects("events")}
    wait_until(lambda: complete(namespace, "run"), "the other run has ended", 240)


def nodes_of(space: Namespace) -> list[str]:
    pods = [pod["spec"].get("nodeName", "") for pod in node_pods(space)]
    return pods if len(pods) == 2 and all(pods) else []


@pytest.mark.parametrize("packed", [True, False])
def test_the_pods_of_a_run_share_a_topology_domain_if_they_should(namespace, packed):
    """Each node is a rack. Without a topology the pods prefer nodes of their own."""
    label = f"rack-{namespace.name}"
    with racks(namespace.cluster, label):
        namespace.install(
            "run",
            "ddp-run",
            *ONE_THREAD,
            *(sets(placement={"topologyKey": label}) if packed else []),
        )
        found = wait_until(lambda: nodes_of(namespace), "both pods have a node", 90)
    assert len(set(found)) == (1 if packed else 2)


# Only what cannot fail on a busy machine.
ACCEPTANCE = ("--set-json", 'checks=["environment"]', "--set", "device=cpu,workload=job")
RUN = (*ONE_THREAD, "--set", "nodes=1")


def failures(space: Namespace) -> set[str]:
    """Reasons for which the Jobs have failed."""
    found = [true_conditions(job).get("Failed") for job in space.objects("jobs")]
    return {each["reason"] for each in found if each}


def of_run(space: Namespace) -> list[dict]:
    """The pods of the release without that of the page of an acceptance, which stays."""
    component = "app.kubernetes.io/component"
    return [pod for pod in space.pods("run") if pod["metadata"]["labels"].get(component) != "fleet"]


@pytest.mark.parametrize("chart", ["ddp-run", "gpu-accept", "job-group"])
def test_a_deadline_ends_what_would_not_end(namespace, chart):
    """A run and an acceptance that wait for a node that does not exist, and a group whose program
    does not end.
    """
    deadline, many = (
        ("--set", "activeDeadlineSeconds=15"),
        len(namespace.cluster.schedulable_nodes()) + 1,
    )
    nowhere = ("--set", f"nodes={many},placement.onePodPerNode=required")
    settings = {
        "ddp-run": (*ONE_THREAD, *nowhere),
        "gpu-accept": (*ACCEPTANCE, "--set", f"nodes={many}"),
        "job-group": ("--set", "workload=jobs"),
    }
    values = group(t={"run": FOREVER}) if chart == "job-group" else None
    namespace.install("run", chart, *settings[chart], *deadline, values=values)
    assert wait_until(lambda: failures(namespace), "the Job has failed", 90) == {"DeadlineExceeded"}
    ended = ("Succeeded", "Failed")
    wait_until(
        lambda: all(pod["status"]["phase"] in ended for pod in of_run(namespace)),
        "no pod is left",
        90,
    )


FINISHING = {
    "Job of ddp-run": ("ddp-run", RUN, None, "jobs"),
    "JobSet of ddp-run": ("ddp-run", (*RUN, "--set", "workload=jobset"), None, "jobset"),
    "Job of gpu-accept": ("gpu-accept", (*ACCEPTANCE, "--set", "nodes=1"), None, "jobs"),
    "JobSet of job-group": ("job-group", (), group(t={"run": "true"}), "jobset"),
    "Jobs of job-group": (
        "job-group",
        ("--set", "workload=jobs"),
        group(t={"run": "true"}),
        "jobs",
    ),
}


@pytest.mark.parametrize("case", FINISHING)
def test_what_has_finished_is_deleted_after_its_time(namespace, case):
    chart, settings, values, kind = FINISHING[case]
    namespace.install("run", chart, *settings, "--set", "ttlSecondsAfterFinished=0", values=values)
    assert namespace.objects(kind), "it exists until it has finished"
    wait_until(
        lambda: not namespace.objects(kind) and not of_run(namespace),
        "it is deleted with its pods",
        180,
    )
