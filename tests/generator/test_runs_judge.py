"""kubectl runs: the judge, over the charts' objects with each fault on each rank in each state of
the run.
"""

import functools
import itertools

import pytest

from gpuworker.launch import launcher
from gpuworker.launch.failure_causes import CAUSES, Failure
from kubectl_runs.report import ranks as table
from tests.generator.cluster_objects import LATER, Cluster, cluster

BEFORE = "2026-11-01T10:06:00Z"
ALONE = {"learner": {"numNodes": 2, "run": "a"}, "buffer": {"run": "b"}}
RUNS = {
    "jobset": lambda: cluster(workload="jobset"),
    "jobs": lambda: cluster(workload="jobs"),
    "alone": lambda: cluster(workload="jobset", interConnection=False, tasks=ALONE),
    "ddp-jobset": lambda: cluster("ddp-run", workload="jobset"),
    "ddp-job": lambda: cluster("ddp-run", workload="indexed-job"),
    "ddp-statefulset": lambda: cluster("ddp-run", workload="statefulset"),
}


@functools.cache
def healthy(name):
    return RUNS[name]()


def mounts(run, rank):
    run.waiting(rank, "ContainerCreating")
    run.event(run.pods[rank]["metadata"]["name"], "FailedMount", "timed out")


def unseen(run, rank):
    run.pods[rank]["status"] = {"phase": "Pending"}
    run.pods[rank]["spec"].pop("nodeName", 0)


def silent(run, rank):
    """Kubernetes takes back the pod's readiness alone."""
    run.pods[rank]["status"]["conditions"][-1].update(type="Ready", status="False")


# What keeps a pod from starting: (phase, cause, what happens to the run and the rank, …).
WAITS = {
    "no room": ("pending", "Unschedulable", Cluster.unscheduled, "Unschedulable"),
    "gate": ("queued", "SchedulingGated", Cluster.unscheduled, "SchedulingGated"),
    "unseen": ("pending", "Pending", unseen),
    "mount": ("starting", "FailedMount", mounts),
    "no pod": ("missing", "NoPod", Cluster.removed),
}
REASONS = "ImagePullBackOff InvalidImageName ContainerCreating CreateContainerConfigError"
for reason in f"{REASONS} RunContainerError".split():
    WAITS[reason] = "starting", reason, Cluster.waiting, reason
# How a rank ends.
ENDS = {
    "exit 3": ("failed", "Error", Cluster.ended, 3, "step 1\nValueError: no"),
    "out of memory": ("failed", "OOMKilled", Cluster.ended, 137, "", LATER, "OOMKilled"),
    "killed": ("failed", "Error", Cluster.ended, 137),
    "no start": ("failed", "StartError", Cluster.ended, 128, "exec", LATER, "StartError"),
    "hang": ("failed", "no-progress", Cluster.ended, 70, "exit code 70 (no-progress): no. look"),
    "stopped": ("stopped", "Terminating", Cluster.ended, 143),
}
# What happens to a pod that runs.
LOSSES = {"node silent": ("lost", "NodeLost", silent)}
for reason in ("EvictionByEvictionAPI", "PreemptionByScheduler", "DeletionByTaintManager"):
    phase = "lost" if "Taint" in reason else "stopped"
    LOSSES[reason] = phase, reason, Cluster.disrupted, reason


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("fault", [*WAITS, *ENDS, *LOSSES])
def test_each_fault_of_each_rank_is_named(name, fault):
    base = healthy(name)
    for rank in base.pods:
        found = base.copy()
        phase, cause, happens, *arguments = (WAITS | ENDS | LOSSES)[fault]
        happens(found, rank, *arguments)
        status = found.judged()
        state = {each.name: each for each in status.ranks}
        assert (state[rank].phase, state[rank].cause) == (phase, cause), rank
        (finding,) = [each for each in status.findings if each.cause == cause]
        assert finding.ranks == (rank,) and finding.first == (phase == "failed"), rank
        rest = {each.phase for each in status.ranks if each.name != rank}
        waits = fault in WAITS and name != "alone"
        assert rest == ({"waiting"} if waits else {"running"}), rank
        assert {each.cause for each in status.findings} - {cause} == (
            {"barrier"} if waits else set()
        ), rank


@pytest.mark.parametrize("name", RUNS)
def test_of_two_failures_the_earlier_is_the_first(name):
    base = healthy(name)
    for one, two in itertools.permutations(base.pods, 2):
        found = base.copy()
        found.ended(one, 3, "boom", at=BEFORE)
        found.ended(two, 4, "bang", at=LATER)
        (first,) = [each for each in found.judged().findings if each.first]
        assert (first.ranks, first.exit_code, first.lines) == ((one,), 3, ("boom",)), (one, two)
        found.waiting(two, "ErrImagePull")
        assert {"Error", "ErrImagePull"} <= {each.cause for each in found.judged().findings}


def test_ranks_that_a_failure_ended_are_no_finding():
    for name in ("jobset", "jobs"):
        base = RUNS[name]()
        for rank in ("learner-0", "learner-1"):
            found = base.copy()
            for other in found.pods:
                # The clock of another node may be behind.
                found.ended(
                    other,
                    1,
                    f"[FATAL] node={other} exit_code=1 stopped: failed {rank} 7",
                    at=BEFORE,
                )
            found.ended(rank, 7, "Traceback\nKeyError: 'x'")
            status = found.judged()
            (finding,) = status.findings
            assert (finding.cause, finding.ranks, finding.exit_code) == ("Error", (rank,), 7)
            assert finding.lines[-1] == "KeyError: 'x'"
            assert status.state == {"jobset": "restarting", "jobs": "failed"}[name]
            found.removed(rank)  # then the others say it
            first = next(each for each in found.judged().findings if each.first)
            assert (first.cause, first.ranks, first.exit_code) == ("PodDeleted", (rank,), 7)


def test_a_run_without_pods_has_the_reason_of_its_object():
    found = RUNS["jobset"]()
    found.condition(found.owner, "Failed", "FailedJobs", "first failed job: learner-1")
    for rank in list(found.pods):
        found.removed(rank)
    status = found.judged()
    (finding,) = status.findings
    assert (status.state, finding.cause, finding.detail) == (
        "failed",
        "FailedJobs",
        "first failed job: learner-1",
    )


def test_a_job_that_failed_without_a_pod_has_its_own_reason():
    found = RUNS["jobs"]()
    found.removed("learner-1")
    job = found.job("learner-1")
    found.condition(job, "Failed", "DeadlineExceeded", "was active longer than the deadline")
    status = found.judged()
    (first,) = [each for each in status.findings if each.first]
    assert (status.state, first.cause, first.ranks) == (
        "failed",
        "DeadlineExceeded",
        ("learner-1",),
    )


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.key)
def test_the_launchers_verdict_is_the_cause_as_it_is(cause, tmp_path, monkeypatch):
    said = tmp_path / "message"
    said.touch()
    monkeypatch.setenv("TERMINATION_LOG", str(said))
    if cause.code:
        launcher.report(0, Failure(cause.key, "facts of the run"), 1.0)
        found = RUNS["ddp-jobset"]()
        for rank in found.pods:
            found.ended(rank, int(cause.code), said.read_text())
        found.condition(found.owner, "Failed", "FailedJobs")
        (finding,) = found.judged().findings
        assert (finding.cause, finding.ranks, finding.exit_code) == (
            cause.key,
            tuple(found.pods),
            cause.code,
        )
        assert "facts of the run" in finding.detail and cause.remedy in finding.detail


@pytest.mark.parametrize(
    ("verdict", "code"),
    [("PASS", 0), ("WARN", 0), ("FAIL", 1), ("INCOMPLETE", 2), ("FAIL", 0), ("INCOMPLETE", 0)],
)
def test_the_line_of_an_acceptance_is_shown_as_it_is(verdict, code):
    found = cluster("gpu-accept", nodes=1, gpusPerNode=8)
    found.accepted("gpu-0", code, f"{verdict}: gemm_bf16 401 TFLOP/s\nhbm 2,900 GB/s")
    status = found.judged()
    (rank,) = status.ranks
    assert rank.detail == f"{verdict}: gemm_bf16 401 TFLOP/s" and rank.detail in table(status)
    is_bad = verdict in ("FAIL", "INCOMPLETE")
    assert [each.detail for each in status.findings] == [rank.detail] * is_bad
    assert (status.state == "failed") is is_bad


@pytest.mark.parametrize("page", [True, False])
def test_pods_of_an_acceptance_that_a_quota_refuses_are_named(page):
    found = cluster("gpu-accept", nodes=3)
    if page:
        found.page(ready=False)
    owner = found.objects["daemonsets"][0]
    owner["status"] = {"desiredNumberScheduled": 3}
    found.event(owner["metadata"]["name"], "FailedCreate", "exceeded quota: gpus")
    status = found.judged()
    (finding,) = status.findings
    assert (status.state, finding.cause, len(finding.ranks)) == ("pending", "FailedCreate", 3)
    assert finding.detail == "exceeded quota: gpus"


@pytest.mark.parametrize("nodes", [3, ["gpu-0", "gpu-1", "gpu-2"]])
@pytest.mark.parametrize("there", [0, 2])
def test_a_node_that_must_report_and_has_no_pod_is_named(nodes, there):
    """Neither `done` nor `nothing is wrong` where fewer nodes are tested than were asked for."""
    found = cluster("gpu-accept", nodes=nodes)
    found.page(ready=False)
    for number in range(there):
        found.accepted(f"gpu-{number}", 0, "PASS")
    status = found.judged()
    (finding,) = status.findings
    assert (status.state, finding.cause, len(finding.ranks)) == ("pending", "NoNode", 3 - there)
    assert isinstance(nodes, int) or set(finding.ranks) == {"gpu-0", "gpu-1", "gpu-2"} - {
        r.node for r in status.ranks
    }


@pytest.mark.parametrize("ready", [True, False])
def test_an_acceptance_is_done_when_its_page_has_accepted_the_nodes(ready):
    found = cluster("gpu-accept", nodes=1)
    found.page(ready)
    found.accepted("gpu-0", 0, "PASS")
    found.objects["pods"][-1]["status"] |= {"phase": "Succeeded"}
    status = found.judged()
    assert status.state == ("done" if ready else "running")
    assert [each.cause for each in status.findings] == ([] if ready else ["not-accepted"])


def test_ranks_whose_pods_a_failure_deleted_are_stopped():
    found = RUNS["jobset"]()
    found.ended("learner-0", 7, "loads data\n[FATAL] node=learner-0 step=run exit_code=7\n")
    found.condition(found.owner, "Failed", "FailedJobs", "one or more jobs failed")
    for rank in ("learner-1", "buffer-0", "eval-0"):
        found.removed(rank)
    status = found.judged()
    assert {each.name: (each.phase, each.cause) for each in status.ranks} == {
        "learner-0": ("failed", "Error"),
        **dict.fromkeys(("learner-1", "buffer-0", "eval-0"), ("stopped", "peer")),
    }
    assert [each.cause for each in status.findings] == ["Error"]
    assert "exit_code=7" in table(status) and "loads data" not in table(status)


def test_ranks_that_the_join_timeout_names_are_the_cause():
    found = RUNS["jobset"]()
    text = "after 600 s these ranks were missing: buffer-0 did not start (image pull? crash?)"
    for rank in found.pods:
        found.ended(rank, 66, f"[FATAL] node={rank} exit_code=66 {text}")
    found.waiting("buffer-0", "ErrImagePull", "denied")
    causes = {each.cause: each for each in found.judged().findings}
    assert set(causes["join-timeout"].ranks) == {"learner-0", "learner-1", "eval-0"}
    assert "buffer-0" in causes["join-timeout"].detail and causes["ErrImagePull"].ranks == (
        "buffer-0",
    )


def test_the_join_timeout_keeps_what_the_cluster_said_of_the_missing_rank():
    """JobSet has deleted its pod; the warning is still there."""
    found = RUNS["jobset"]()
    found.event(found.pods["buffer-0"]["metadata"]["name"], "FailedScheduling", "Insufficient cpu")
    found.removed("buffer-0")
    for rank in found.pods:
        found.ended(rank, 66, "these ranks were missing: buffer-0")
    found.condition(found.owner, "Failed")
    first = found.judged().findings[0]
    assert (
        first.cause == "join-timeout"
        and first.lines[-1] == "buffer-0: FailedScheduling: Insufficient cpu"
    )


def test_the_queue_says_why_it_holds_a_group():
    for workload in ("jobset", "jobs"):
        found = cluster(workload=workload, kueue={"queueName": "gpus"})
        why = {"type": "QuotaReserved", "status": "False", "message": "insufficient unused quota"}
        about = {"name": "w", "ownerReferences": [{"name": found.run_id}]}
        found.objects["workloads"] = [{"metadata": about, "status": {"conditions": [why]}}]
        for rank in list(found.pods):
            if workload == "jobset":
                found.removed(rank)
            else:
                found.unscheduled(rank, "SchedulingGated")
        if workload == "jobset":
            found.owner["spec"]["suspend"] = True
            found.objects["children"] = []
        cause = "Suspended" if workload == "jobset" else "SchedulingGated"
        status = found.judged()
        (finding,) = status.findings
        assert (status.state, finding.cause, len(finding.ranks)) == ("queued", cause, 4)
        assert "insufficient unused quota" in finding.detail


def test_refused_pods_and_absent_controllers_are_told_apart():
    found = RUNS["jobset"]()
    job = found.job("learner-1")
    found.removed("learner-1")
    found.event(job["metadata"]["name"], "FailedCreate", "exceeded quota: compute")
    found.event("another", "FailedCreate", "not ours")
    (finding,) = [each for each in found.judged().findings if each.cause != "barrier"]
    assert (finding.cause, finding.ranks, finding.detail) == (
        "FailedCreate",
        ("learner-1",),
        "exceeded quota: compute",
    )
    for rank in list(found.pods):
        found.removed(rank)
    found.objects["children"], found.objects["events"] = [], []
    (finding,) = found.judged().findings
    assert (finding.cause, len(finding.ranks)) == ("NoPod", 4)


def test_a_job_that_a_jobset_could_not_create_is_named():
    found = RUNS["jobset"]()
    found.removed("learner-1")
    job = found.job("learner-1")
    found.objects["children"].remove(job)
    message = f'job "{job["metadata"]["name"]}" creation failed with error: must be less'
    said = f'job "another" creation failed\n{message}'
    found.event(found.owner["metadata"]["name"], "JobCreationFailed", said)
    (finding,) = [each for each in found.judged().findings if each.cause != "barrier"]
    assert (finding.cause, finding.ranks) == (
        "JobCreationFailed",
        ("learner-1",),
    ) and message in finding.detail


def test_a_failed_sidecar_is_named():
    found = RUNS["jobset"]()
    pod = found.waiting("buffer-0", "PodInitializing")
    crash = {"waiting": {"reason": "CrashLoopBackOff"}}
    ended = {"terminated": {"exitCode": 1, "message": "plan: no such file"}}
    pod["status"]["initContainerStatuses"] = [{"name": "agent", "state": crash, "lastState": ended}]
    crashed = next(each for each in found.judged().findings if each.cause == "CrashLoopBackOff")
    assert "no such file" in crashed.detail and crashed.ranks == ("buffer-0",)


def test_a_replaced_pod_stands_for_its_rank_which_has_passed_the_barrier():
    found = RUNS["jobs"]()
    old = found.copy().ended("buffer-0", 143)
    old["metadata"] |= {"name": "old", "creationTimestamp": "2026-11-01T09:00:00Z"}
    found.objects["pods"].insert(0, old)
    rank = next(each for each in found.judged().ranks if each.name == "buffer-0")
    assert (rank.phase, rank.replaced) == ("running", 1)
    found.unscheduled("buffer-0", "Unschedulable", "preempted before")
    phases = {each.name: each.phase for each in found.judged().ranks}
    assert phases["learner-0"] == "running" and phases["buffer-0"] == "pending"


def test_states_of_a_run_without_faults():
    for name, make in RUNS.items():
        found = make()
        assert (found.judged().state, found.judged().findings) == ("running", []), name
        for rank in found.pods:
            found.ended(rank, 0)
        assert (found.judged().state, found.judged().findings) == ("done", []), name


def test_the_newest_version_of_a_group_counts():
    found, older = RUNS["jobset"](), cluster(workload="jobset", runId="first")
    for each in older.objects["configmaps"]:
        each["metadata"]["creationTimestamp"] = "2026-10-01T00:00:00Z"
    older.ended("learner-0", 1)
    run = found.owner["metadata"]["name"]
    for kind in found.objects:
        found.objects[kind] = older.objects[kind] + found.objects[kind]
    status = found.judged()
    assert (status.id, status.state, status.findings) == (run, "running", [])


def test_a_group_that_is_done_waits_for_nothing():
    found = RUNS["jobset"]()
    for rank in list(found.pods):
        found.ended(rank, 0)
        if not rank.startswith("learner"):  # JobSet deletes the auxiliary Jobs that still run
            found.removed(rank)
    found.condition(found.owner, "Completed")
    found.objects["children"] = [
        each for each in found.objects["children"] if "learner" in each["metadata"]["name"]
    ]
    status = found.judged()
    assert (status.state, status.findings) == ("done", [])


def test_a_failed_rank_is_the_end_of_a_run_once_its_object_says_so():
    """JobSet may start it again, or has counted the restart and not made the pods yet."""
    found = RUNS["jobset"]()
    found.ended("learner-0", 1)
    assert found.judged().state == "restarting"
    found.condition(found.owner, "Failed")
    assert found.judged().state == "failed"


def test_the_job_that_checks_the_template_is_no_run():
    found = cluster("ddp-run")
    (run,) = found.objects["jobs"]
    later = {**run["metadata"], "name": "rl-ddp-run-check", "creationTimestamp": LATER}
    found.objects["jobs"].append(
        {**run, "metadata": later, "spec": {**run["spec"], "completions": 0}}
    )
    status = found.judged()
    assert (status.state, len(status.ranks)) == ("running", 3)
