"""Every scenario renders, with Helm 3 and Helm 4 to the same objects, and each time to the same
bytes.
"""

import json
import re

import pytest
import yaml

from tests.helpers.rendering import (
    HELMS,
    checks,
    each_helm,
    each_scenario,
    objects,
    output,
    pod_templates,
    render,
    rendered,
)

pytestmark = pytest.mark.slow


@each_scenario
def test_helm_3_and_helm_4_render_the_same_objects(scenario):
    helm, helm3 = (objects(rendered(helm, scenario)) for helm in HELMS)
    assert by_name(helm) == by_name(helm3)


@each_helm
@each_scenario
def test_rendering_twice_gives_the_same_bytes(scenario, helm):
    assert output(helm, scenario.chart, scenario.values) == rendered(helm, scenario)


@each_scenario
def test_every_object_says_whose_it_is(scenario):
    values = yaml.safe_load(scenario.values)
    wanted = {"app.kubernetes.io/name": scenario.chart, "app.kubernetes.io/instance": "test"}
    if scenario.chart == "job-group":
        wanted["job-group/name"] = values["name"]
    users = values.get("extraObjects", [])
    for item in (item for item in objects(rendered("helm", scenario)) if item not in users):
        found, name = item["metadata"]["labels"], item["metadata"]["name"]
        if "-programs-" in name:  # of the chart, whatever the group
            found = found | wanted
        assert wanted.items() <= found.items(), item["metadata"]
        assert item["metadata"]["name"].startswith(wanted.get("job-group/name", "test"))


@each_scenario
def test_pods_get_no_token_of_the_api_server(scenario):
    pods = [pod["spec"] for pod in pod_templates(objects(rendered("helm", scenario)))]
    tokens = [pod.get("automountServiceAccountToken") for pod in pods]
    assert pods and tokens == [
        pod.get("serviceAccountName") == "test-gpu-accept-fleet" for pod in pods
    ]  # of listPods


@each_helm
@each_scenario
def test_whole_numbers_stay_whole(scenario, helm):
    """Helm keeps numbers as floats, and would print a million as 1e+06."""
    assert re.findall(r"^.*[:-] [0-9.]+e[+][0-9]+$", rendered(helm, scenario), re.MULTILINE) == []


@pytest.mark.parametrize("workload", ["jobs", "jobset"])
def test_ranks_of_a_task_differ_in_their_number_and_in_no_text_of_the_user(workload):
    digits = "0 1 2 10 11 0123456789 1000000"
    container = {"env": [{"name": "B", "value": digits}]}
    more = {
        "metadata": {"annotations": {"example.com/digits": digits}},
        "spec": {"containers": [container]},
    }
    task = {"numNodes": 12, "env": {"A": digits}, "podTemplate": more, "run": ""}
    items = render("job-group", {"workload": workload, "tasks": {"t": task}})
    jobs = [item for item in items if item["kind"] == "Job"]
    for jobset in (item for item in items if item["kind"] == "JobSet"):
        jobs += [each["template"] for each in jobset["spec"]["replicatedJobs"]]
    ranks = [
        without_its_number(job["spec"]["template"], str(rank)) for rank, job in enumerate(jobs)
    ]
    assert ranks == ranks[:1] * 12
    assert json.dumps(ranks[0]).count(digits) == 3


def without_its_number(pod: dict, rank: str) -> dict:
    agent, task = pod["spec"]["initContainers"][0], pod["spec"]["containers"][0]
    assert pod["metadata"]["labels"].pop("job-group/rank") == rank
    assert pod["spec"].pop("hostname") == f"t-{rank}"
    agent["args"].remove(f"--host=t-{rank}")
    numbers = {"GPU_CHARTS_HOST": f"t-{rank}"} | dict.fromkeys(
        ["NODE_RANK", "PET_NODE_RANK", "RANK", "SKYPILOT_NODE_RANK"], rank
    )
    found = {each["name"]: each.get("value") for each in task["env"]}
    assert {name: found[name] for name in numbers} == numbers
    task["env"] = [each for each in task["env"] if each["name"] not in numbers]
    return pod


@each_scenario
def test_kubernetes_checks_the_pods_that_will_run(scenario):
    """In Jobs that have no pods, which restart nothing."""
    text = rendered("helm", scenario)
    run = [
        template["spec"] | {"restartPolicy": "Never"} for template in pod_templates(objects(text))
    ]
    for job in checks(text):
        assert job["spec"]["completions"] == 0 and job["spec"]["template"]["spec"] in run


def by_name(items: list[dict]) -> dict[tuple[str, str], dict]:
    named = {(item["kind"], item["metadata"]["name"]): item for item in items}
    assert len(named) == len(items), "two objects with one name"
    return named
