"""job-group in a queue of Kueue: groups that Kueue would not accept are refused, and what is
missing is named.
"""

import pytest
import yaml

from tests.helpers.rendering import each_helm, refusal, render

MOST = 18  # pod sets of a Workload of Kueue


def group(tasks: dict, **values: object) -> dict:
    return {"workload": "jobs", "kueue": {"queueName": "team-a"}, "tasks": tasks, **values}


def sized(number: int) -> dict:
    """Tasks of which each requests something else."""
    return {
        f"t{n}": {"run": "true", "resources": {"requests": {"cpu": n + 1}}} for n in range(number)
    }


def jobs(values: dict) -> int:
    return len([each for each in render("job-group", values) if each["kind"] == "Job"])


@each_helm
def test_more_shapes_than_kueue_accepts_are_refused(helm):
    message = refusal("job-group", group(sized(MOST + 1)), helm=helm)
    assert (
        "kueue.queueName: " in message and f" {MOST} " in message and f"not {MOST + 1}" in message
    )
    assert jobs(group(sized(MOST))) == MOST
    assert jobs(group(sized(MOST + 1), kueue={"queueName": ""})) == MOST + 1


ALIKE = {
    "nothing": {},
    "several nodes": {"numNodes": 2},
    "the same GPUs": {"accelerator": {"types": ["H100"], "count": 1}},
    "a limit in place of a request": {"resources": {"limits": {"cpu": 1}}},
}


@pytest.mark.parametrize("fields", ALIKE.values(), ids=ALIKE)
def test_tasks_that_ask_for_the_same_are_one_shape(fields):
    alike = {f"x{n}": {"run": "true", **fields} for n in range(3)}
    number = sum(task.get("numNodes", 1) for task in alike.values())
    assert jobs(group(sized(MOST - 1) | alike)) == MOST - 1 + number


OTHER = yaml.safe_load("""
a GPU type: {accelerator: {types: [H100], count: 1}}
a node label: {podTemplate: {spec: {nodeSelector: {a: b}}}}
a toleration: {podTemplate: {spec: {tolerations: [{key: a, operator: Exists}]}}}
a sidecar: {podTemplate: {spec: {initContainers: [{name: a, image: 'r.io/a:1'}]}}}
a limit: {resources: {limits: {memory: 1Gi}}}
a priority: {podTemplate: {spec: {priorityClassName: high}}}
""")


@pytest.mark.parametrize("fields", OTHER.values(), ids=OTHER)
def test_what_kueue_looks_at_makes_another_shape(fields):
    tasks = sized(MOST) | {"other": {"run": "true", **fields}}
    assert f"not {MOST + 1}" in refusal("job-group", group(tasks))
