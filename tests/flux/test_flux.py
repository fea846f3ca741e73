"""Runs under Flux: a commit of one file is one run, whatever Flux reconciles afterwards."""

import yaml

from tests.flux.conftest import Team
from tests.helpers.git_runs import jobsets, values
from tests.helpers.kube import true_conditions, wait_until


def ends(team: Team, condition: str) -> dict[str, str]:
    """Wait until the only JobSet has ended so, and return it."""

    def ended():
        found = team.space.objects("jobsets")
        return len(found) == 1 and condition in true_conditions(found[0])

    wait_until(ended, f"the group has {condition}")
    return jobsets(team)


def test_one_file_is_one_run(team, tmp_path):
    """How it is started again, refused and removed is in test_flux_page.py."""
    team.start("job-group", "pair", values(tmp_path, "sleep 5; echo first"))
    wait_until(lambda: team.status("helmrelease", "pair"), "Flux has made the HelmRelease")
    team.ready("pair")
    first = ends(team, "Completed")

    team.again("pair", times=5)
    team.runs.commit({"README.md": "Another text.\n"})
    team.charts.commit({"charts/README.md": "Another text of the charts.\n"})
    team.reconcile("gitrepository", "gpu-charts")
    team.again("pair")
    team.ready("pair")
    assert jobsets(team) == first

    team.space.kubectl("delete", "jobsets", "--all")
    team.again("pair", times=3)
    assert jobsets(team) == {}


def test_a_run_that_failed_is_not_tried_again(team, tmp_path):
    team.start("job-group", "pair", values(tmp_path, "echo broken; exit 3"))
    failed = ends(team, "Failed")
    team.again("pair", times=3)
    assert jobsets(team) == failed


def test_a_file_that_is_no_yaml_is_named_and_leaves_the_runs_alone(team, tmp_path):
    team.start("job-group", "pair", values(tmp_path, "echo first"))
    first = ends(team, "Completed")
    team.runs.commit({"runs/broken.yaml": "a: b: c\n"})
    source = team.reconcile("gitrepository", "runs")["artifact"]["revision"]

    def named():
        status = team.reconcile("kustomization", "runs")
        ready = next(each for each in status["conditions"] if each["type"] == "Ready")
        return (
            status["lastAttemptedRevision"] == source
            and ready["status"] == "False"
            and "broken" in ready["message"]
        )

    wait_until(named, "the Kustomization names the file")
    assert jobsets(team) == first


def test_a_torchrun_job_runs_once(team):
    run = yaml.safe_dump({"env": {"OMP_NUM_THREADS": "1"}})
    team.start("ddp-run", "train", run)
    wait_until(lambda: team.space.objects("jobs"), "Flux has made the Job")
    name = team.space.objects("jobs")[0]["metadata"]["name"]
    team.space.kubectl("wait", f"job/{name}", "--for=condition=Complete", "--timeout=200s")
    team.again("train")
    team.ready("train")
    assert [job["metadata"]["name"] for job in team.space.objects("jobs")] == [name]


def test_the_verdict_of_the_fleet_is_the_condition(team):
    nodes = len(team.space.cluster.schedulable_nodes())
    fleet = {"device": "cpu", "nodes": nodes, "level": "quick"}
    fleet |= {"checks": ["environment", "compute"]}
    team.start("gpu-accept", "accept", yaml.safe_dump(fleet))
    wait_until(lambda: team.status("helmrelease", "accept"), "Flux has made the HelmRelease")
    team.ready("accept", deadline_s=300)
    fleet |= {"runId": "2", "inject": "nan-product", "fleet": {"deadlineSeconds": 60}}
    team.commit("gpu-accept", "accept", yaml.safe_dump(fleet))
    team.pull()
    assert "fleet" in team.ready("accept", "False", 300)
