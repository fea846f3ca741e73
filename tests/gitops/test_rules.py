"""Rules of the Applications in gitops/argocd that their comments and docs/gitops.md promise."""

import uuid

import yaml

from tests.e2e.test_kueue import QUEUES
from tests.gitops.test_argo_cd import health_of, reaches
from tests.helpers.git_runs import jobsets, values
from tests.helpers.kube import wait_until


def test_a_finished_run_is_kept_by_self_heal(team, tmp_path):
    team.runs.commit({"rl/values.yaml": values(tmp_path) + "ttlSecondsAfterFinished: 1\n"})
    application = team.apply("job-group.yaml")
    reaches(team, application, "Synced", "Healthy")
    finished = jobsets(team)
    assert "ttlSecondsAfterFinished" not in team.space.objects("jobsets")[0]["spec"]
    team.space.kubectl(
        "label", "service", "pair", "app.kubernetes.io/instance=another", "--overwrite"
    )
    wait_until(
        lambda: (
            team.argo.application(application)
            and team.space.objects("service", "app.kubernetes.io/instance=rl")
        ),
        "Argo CD has mended the Service",
    )
    team.argo.sync(application)
    reaches(team, application, "Synced", "Healthy")
    assert jobsets(team) == finished


def test_a_group_that_kueue_holds_is_suspended(team, tmp_path):
    queue = f"argo-{uuid.uuid4().hex[:8]}"
    kubectl = team.space.kubectl
    team.space.apply(QUEUES.format(name=queue, namespace=team.space.name, quota=1))
    try:
        queued = "kueue: {queueName: queue}\n"
        team.runs.commit({"rl/values.yaml": queued + values(tmp_path, "sleep 5")})
        application = team.apply("job-group.yaml")
        held = reaches(team, application, "Synced", "Suspended")
        assert "queue" in health_of(held, "JobSet")[0]["message"]
        assert team.space.objects("pods") == []
        team.space.apply(QUEUES.format(name=queue, namespace=team.space.name, quota=8))
        reaches(team, application, "Synced", "Progressing")
        reaches(team, application, "Synced", "Healthy")
        assert len(jobsets(team)) == 1
    finally:
        for kind in ("clusterqueue", "resourceflavor"):
            kubectl("delete", kind, queue, "--wait=false")


def test_a_torchrun_job_ends_healthy_or_says_why_not(team):
    run = {"env": {"OMP_NUM_THREADS": "1"}}
    team.runs.commit({"train/values.yaml": yaml.safe_dump(run)})
    application = team.apply("ddp-run.yaml")
    reaches(team, application, "Synced", "Progressing")
    reaches(team, application, "Synced", "Healthy", 300)
    first = {job["metadata"]["name"] for job in team.space.objects("jobs")}
    bad = {**run, "program": {"args": ["-m", "unittest", "no_such_module"]}}
    team.runs.commit({"train/values.yaml": yaml.safe_dump(bad)})
    broken = reaches(team, application, "Synced", "Degraded", 300)
    assert health_of(broken, "Job")[0]["message"]
    second = {job["metadata"]["name"] for job in team.space.objects("jobs")}
    assert len(second) == 1 and not first & second


def test_the_verdict_of_the_fleet_is_the_health(team):
    nodes = len(team.space.cluster.schedulable_nodes())
    fleet = {"device": "cpu", "nodes": nodes, "level": "quick"}
    fleet |= {"checks": ["environment", "compute"]}
    team.runs.commit({"accept/values.yaml": yaml.safe_dump(fleet)})
    application = team.apply("gpu-accept.yaml")
    reaches(team, application, "Synced", "Progressing")
    reaches(team, application, "Synced", "Healthy", 300)
    fleet |= {"runId": "2", "inject": "nan-product", "fleet": {"deadlineSeconds": 60}}
    team.runs.commit({"accept/values.yaml": yaml.safe_dump(fleet)})
    reaches(team, application, "Synced", "Degraded", 300)
