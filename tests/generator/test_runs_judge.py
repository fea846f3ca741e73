"""kubectl runs: the judge, over the charts' objects with each fault on each rank in each state of the run."""

import itertools
import random

import pytest

from gpuworker.launch import launcher
from gpuworker.launch.failure_causes import CAUSES, Failure
from kubectl_runs.report import ranks as table
from tests.generator.cluster_objects import LATER, cluster

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
# What keeps a pod from starting: fault -> (phase, cause).
WAITS = {
    "no room": (
        lambda c, r: c.unscheduled(r, "Unschedulable", "0/4 nodes: 4 Insufficient nvidia.com/gpu."),
        "pending",
        "Unschedulable",
    ),
    "claim": (
        lambda c, r: c.unscheduled(r, "Unschedulable", 'persistentvolumeclaim "data" not found'),
        "pending",
        "Unschedulable",
    ),
    "gate": (lambda c, r: c.unscheduled(r, "SchedulingGated", "Scheduling is blocked"), "queued", "SchedulingGated"),
    "unseen": (
        lambda c, r: c.pods[r].update(status={"phase": "Pending"}) or c.pods[r]["spec"].pop("nodeName", 0),
        "pending",
        "Pending",
    ),
    "image": (
        lambda c, r: c.waiting(r, "ImagePullBackOff", 'Back-off pulling image "x/y:typo"'),
        "starting",
        "ImagePullBackOff",
    ),
    "image name": (lambda c, r: c.waiting(r, "InvalidImageName", "couldn't parse"), "starting", "InvalidImageName"),
    "pulls": (lambda c, r: c.waiting(r, "ContainerCreating"), "starting", "ContainerCreating"),
    "secret": (
        lambda c, r: c.waiting(r, "CreateContainerConfigError", 'secret "rl-secrets" not found'),
        "starting",
        "CreateContainerConfigError",
    ),
    "user": (
        lambda c, r: c.waiting(
            r, "CreateContainerConfigError", "container has runAsNonRoot and image will run as root"
        ),
        "starting",
        "CreateContainerConfigError",
    ),
    "command": (
        lambda c, r: c.waiting(r, "RunContainerError", 'exec: "sh": not found'),
        "starting",
        "RunContainerError",
    ),
    "mount": (
        lambda c, r: (
            c.waiting(r, "ContainerCreating"),
            c.event(c.pods[r]["metadata"]["name"], "FailedMount", "timed out"),
        ),
        "starting",
        "FailedMount",
    ),
    "sandbox": (
        lambda c, r: (
            c.waiting(r, "ContainerCreating"),
            c.event(c.pods[r]["metadata"]["name"], "FailedCreatePodSandBox", "cni"),
        ),
        "starting",
        "FailedCreatePodSandBox",
    ),
    "no pod": (lambda c, r: c.removed(r), "missing", "NoPod"),
}
# How a rank ends: fault -> (phase, cause).
ENDS = {
    "exit 3": (lambda c, r: c.ended(r, 3, "step 1\nValueError: no"), "failed", "Error"),
    "out of memory": (lambda c, r: c.ended(r, 137, reason="OOMKilled"), "failed", "OOMKilled"),
    "killed": (lambda c, r: c.ended(r, 137), "failed", "Error"),
    "not found": (lambda c, r: c.ended(r, 127, "sh: train: not found"), "failed", "Error"),
    "no start": (lambda c, r: c.ended(r, 128, "exec", reason="StartError"), "failed", "StartError"),
    "rendezvous": (
        lambda c, r: c.ended(r, 69, "exit code 69 (slow-import): all nodes joined. set X"),
        "failed",
        "slow-import",
    ),
    "hang": (
        lambda c, r: c.ended(r, 70, "exit code 70 (no-progress): no rank made progress. look"),
        "failed",
        "no-progress",
    ),
    "stopped": (lambda c, r: c.ended(r, 143), "stopped", "Terminating"),
}
# What happens to a pod that runs.
LOSSES = {
    "drained": (lambda c, r: c.disrupted(r, "EvictionByEvictionAPI"), "stopped", "EvictionByEvictionAPI"),
    "preempted": (lambda c, r: c.disrupted(r, "PreemptionByScheduler"), "stopped", "PreemptionByScheduler"),
    "node gone": (lambda c, r: c.disrupted(r, "DeletionByTaintManager"), "lost", "DeletionByTaintManager"),
    "node silent": (
        # Kubernetes takes back the pod's readiness alone.
        lambda c, r: c.pods[r]["status"]["conditions"][-1].update(type="Ready", status="False"),
        "lost",
        "NodeLost",
    ),
}


def mutants():
    """Every run, with every fault on every rank, and a sample of two faults at once."""
    for name, make in RUNS.items():
        base = make()
        for kind, faults in (("wait", WAITS), ("end", ENDS), ("loss", LOSSES)):
            for fault, rank in itertools.product(faults, base.pods):
                yield name, base, kind, fault, faults[fault], rank


def test_each_fault_of_each_rank_is_named():
    count = 0
    for name, base, kind, fault, (break_it, phase, cause), rank in mutants():
        found = base.copy()
        break_it(found, rank)
        status = found.judged()
        state = {each.name: each for each in status.ranks}
        where = (name, fault, rank)
        assert (state[rank].phase, state[rank].cause) == (phase, cause), where
        (finding,) = [each for each in status.findings if each.cause == cause]
        assert finding.ranks == (rank,) and finding.first == (phase == "failed"), where
        rest = {each.phase for each in status.ranks if each.name != rank}
        waits = kind == "wait" and name not in ("alone",)
        assert rest == ({"waiting"} if waits else {"running"}), (where, rest)
        others = {each.cause for each in status.findings} - {cause}
        assert others == ({"barrier"} if waits else set()), (where, others)
        count += 1
    assert count >= 450


def test_two_faults_are_both_named_and_the_first_failure_is_the_earlier_one():
    chance = random.Random(7)
    for name, make in RUNS.items():
        base = make()
        for _ in range(30):
            one, two = chance.sample(sorted(base.pods), 2)
            found = base.copy()
            end, wait = chance.choice(sorted(ENDS)[:6]), chance.choice(sorted(WAITS))
            code = chance.choice([1, 3, 9])
            found.ended(one, code, "boom", at=BEFORE)
            found.ended(two, code + 1, "bang", at=LATER)
            (first,) = [each for each in found.judged().findings if each.first]
            assert (first.ranks, first.exit_code, first.lines) == ((one,), code, ("boom",)), (name, one, two)
            WAITS[wait][0](found, two)
            causes = {each.cause for each in found.judged().findings}
            assert "Error" in causes, (name, end, wait)


def test_ranks_that_a_failure_ended_are_no_finding():
    for name in ("jobset", "jobs"):
        base = RUNS[name]()
        for rank in ("learner-0", "learner-1"):
            found = base.copy()
            for other in found.pods:
                # The clock of another node may be behind.
                found.ended(other, 1, f"[FATAL] node={other} exit_code=1 stopped: failed {rank} 7", at=BEFORE)
            found.ended(rank, 7, "Traceback\nKeyError: 'x'")
            status = found.judged()
            (finding,) = status.findings
            assert (finding.cause, finding.ranks, finding.exit_code) == ("Error", (rank,), 7)
            assert finding.lines[-1] == "KeyError: 'x'"
            assert status.state == {"jobset": "restarting", "jobs": "failed"}[name]
            found.removed(rank)  # then the others say it
            first = next(each for each in found.judged().findings if each.first)
            assert first.cause == "peer" and f"failed {rank} 7" in first.detail


def test_a_run_without_pods_has_the_reason_of_its_object():
    found = RUNS["jobset"]()
    found.condition(found.owner, "Failed", "FailedJobs", "first failed job: learner-1")
    for rank in list(found.pods):
        found.removed(rank)
    status = found.judged()
    (finding,) = status.findings
    assert (status.state, finding.cause, finding.detail) == ("failed", "FailedJobs", "first failed job: learner-1")


def test_a_job_that_failed_without_a_pod_has_its_own_reason():
    found = RUNS["jobs"]()
    found.removed("learner-1")
    job = next(each for each in found.objects["jobs"] if "learner-1" in each["metadata"]["name"])
    found.condition(job, "Failed", "DeadlineExceeded", "was active longer than the deadline")
    status = found.judged()
    (first,) = [each for each in status.findings if each.first]
    assert (status.state, first.cause, first.ranks) == ("failed", "DeadlineExceeded", ("learner-1",))


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
        assert (finding.cause, finding.ranks, finding.exit_code) == (cause.key, tuple(found.pods), cause.code)
        assert "facts of the run" in finding.detail and cause.remedy in finding.detail


@pytest.mark.parametrize(("verdict", "code"), [("PASS", 0), ("WARN", 0), ("FAIL", 1), ("INCOMPLETE", 2)])
def test_the_line_of_an_acceptance_is_shown_as_it_is(verdict, code):
    found = cluster("gpu-accept", nodes=1, gpusPerNode=8)
    found.accepted("gpu-0", code, f"{verdict}: gemm_bf16 401 TFLOP/s\nhbm 2,900 GB/s")
    status = found.judged()
    (rank,) = status.ranks
    assert rank.detail == f"{verdict}: gemm_bf16 401 TFLOP/s" and rank.detail in table(status)
    assert [each.detail for each in status.findings] == [rank.detail] * bool(code)


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
    assert isinstance(nodes, int) or set(finding.ranks) == {"gpu-0", "gpu-1", "gpu-2"} - {r.node for r in status.ranks}


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
    assert "buffer-0" in causes["join-timeout"].detail and causes["ErrImagePull"].ranks == ("buffer-0",)


def test_the_join_timeout_keeps_what_the_cluster_said_of_the_missing_rank():
    """JobSet has deleted its pod; the warning is still there."""
    found = RUNS["jobset"]()
    found.event(found.pods["buffer-0"]["metadata"]["name"], "FailedScheduling", "Insufficient cpu")
    found.removed("buffer-0")
    for rank in found.pods:
        found.ended(rank, 66, "these ranks were missing: buffer-0")
    found.condition(found.owner, "Failed")
    first = found.judged().findings[0]
    assert first.cause == "join-timeout" and first.lines[-1] == "buffer-0: FailedScheduling: Insufficient cpu"


def test_the_queue_says_why_it_holds_a_group():
    for workload in ("jobset", "jobs"):
        found = cluster(workload=workload, kueue={"queueName": "gpus"})
        why = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "insufficient unused quota"}
        found.objects["workloads"] = [
            {"metadata": {"name": "w", "ownerReferences": [{"name": found.run_id}]}, "status": {"conditions": [why]}}
        ]
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
    job = next(each for each in found.objects["children"] if "learner-1" in each["metadata"]["name"])
    found.removed("learner-1")
    found.event(job["metadata"]["name"], "FailedCreate", "exceeded quota: compute")
    (finding,) = [each for each in found.judged().findings if each.cause != "barrier"]
    assert (finding.cause, finding.ranks, finding.detail) == ("FailedCreate", ("learner-1",), "exceeded quota: compute")
    for rank in list(found.pods):
        found.removed(rank)
    found.objects["children"], found.objects["events"] = [], []
    (finding,) = found.judged().findings
    assert (finding.cause, len(finding.ranks)) == ("NoPod", 4)


def test_a_job_that_a_jobset_could_not_create_is_named():
    found = RUNS["jobset"]()
    found.removed("learner-1")
    job = next(each for each in found.objects["children"] if "learner-1" in each["metadata"]["name"])
    found.objects["children"].remove(job)
    message = f'job "{job["metadata"]["name"]}" creation failed with error: must be less than the memory limit of 32Mi'
    found.event(found.owner["metadata"]["name"], "JobCreationFailed", f'job "another" creation failed\n{message}')
    (finding,) = [each for each in found.judged().findings if each.cause != "barrier"]
    assert (finding.cause, finding.ranks) == ("JobCreationFailed", ("learner-1",)) and message in finding.detail


def test_a_failed_sidecar_is_named():
    found = RUNS["jobset"]()
    pod = found.waiting("buffer-0", "PodInitializing")
    crash = {"waiting": {"reason": "CrashLoopBackOff"}}
    ended = {"terminated": {"exitCode": 1, "message": "plan: no such file"}}
    pod["status"]["initContainerStatuses"] = [{"name": "agent", "state": crash, "lastState": ended}]
    causes = {each.cause: each for each in found.judged().findings}
    assert "no such file" in causes["CrashLoopBackOff"].detail and causes["CrashLoopBackOff"].ranks == ("buffer-0",)


def test_a_replaced_rank_has_passed_the_barrier_with_the_others():
    found = RUNS["jobs"]()
    old = found.copy().ended("buffer-0", 143)
    old["metadata"] |= {"name": "old", "creationTimestamp": "2026-11-01T09:00:00Z"}
    found.objects["pods"].insert(0, old)
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


def test_a_replaced_pod_stands_for_its_rank():
    found = RUNS["jobs"]()
    old = found.copy().ended("buffer-0", 143)
    old["metadata"] |= {"name": "old", "creationTimestamp": "2026-11-01T09:00:00Z"}
    found.objects["pods"].insert(0, old)
    rank = next(each for each in found.judged().ranks if each.name == "buffer-0")
    assert (rank.phase, rank.replaced) == ("running", 1)


def test_a_group_that_is_done_waits_for_nothing():
    found = RUNS["jobset"]()
    for rank in list(found.pods):
        found.ended(rank, 0)
        if not rank.startswith("learner"):  # JobSet deletes the auxiliary Jobs that still run
            found.removed(rank)
    found.condition(found.owner, "Completed")
    found.objects["children"] = [each for each in found.objects["children"] if "learner" in each["metadata"]["name"]]
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
    found.objects["jobs"].append({**run, "metadata": later, "spec": {**run["spec"], "completions": 0}})
    status = found.judged()
    assert (status.state, len(status.ranks)) == ("running", 3)
