"""job-group in a queue of Kueue: groups that Kueue would not accept are refused, and what is missing is named."""

from __future__ import annotations

import json

import pytest

from tests.helpers.rendering import HELMS, objects, template

MOST = 18  # pod sets of a Workload of Kueue
WITHOUT_QUEUE = {"queueName": ""}


def group(tasks: dict, **values: object) -> bytes:
    base = {"schemaVersion": 1, "name": "rl", "workload": "jobs", "kueue": {"queueName": "team-a"}}
    return json.dumps({**base, "tasks": tasks, **values}).encode()


def tasks(number: int, **fields: object) -> dict:
    return {f"t{n}": {"run": "true", **fields} for n in range(number)}


def sized(number: int) -> dict:
    """Tasks of which each requests something else."""
    return {f"t{n}": {"run": "true", "resources": {"requests": {"cpu": n + 1}}} for n in range(number)}


def jobs(values: bytes) -> int:
    done = template("helm", "job-group", values)
    assert done.returncode == 0, done.stderr.decode()
    return len([each for each in objects(done.stdout.decode()) if each["kind"] == "Job"])


def refusal(values: bytes, helm: str = "helm") -> str:
    done = template(helm, "job-group", values)
    assert done.returncode != 0
    return done.stderr.decode()


@pytest.mark.parametrize("helm", HELMS)
def test_more_shapes_than_kueue_accepts_are_refused(helm: str) -> None:
    message = refusal(group(sized(MOST + 1)), helm)
    assert "kueue.queueName: " in message and f" {MOST} " in message and f"not {MOST + 1}" in message


def test_as_many_shapes_as_kueue_accepts_render() -> None:
    assert jobs(group(sized(MOST))) == MOST


def test_shapes_do_not_count_without_a_queue() -> None:
    assert jobs(group(sized(MOST + 1), kueue=WITHOUT_QUEUE)) == MOST + 1


ALIKE = {
    "nothing": {},
    "several nodes": {"numNodes": 2},
    "the same GPUs": {"accelerator": {"types": ["H100"], "count": 1}},
}


@pytest.mark.parametrize("fields", ALIKE.values(), ids=ALIKE)
def test_tasks_that_ask_for_the_same_are_one_shape(fields: dict) -> None:
    number = fields.get("numNodes", 1) * (MOST + 2)
    assert jobs(group(tasks(MOST + 2, **fields))) == number


def test_a_limit_is_the_request_that_is_missing() -> None:
    same = [{"requests": {"cpu": 1}}, {"limits": {"cpu": 1}}]
    more = {f"x{n}": {"run": "true", "resources": each} for n, each in enumerate(same)}
    assert jobs(group(sized(MOST) | more)) == MOST + 2


OTHER = {
    "a GPU type": {"accelerator": {"types": ["H100"], "count": 1}},
    "a node label": {"podTemplate": {"spec": {"nodeSelector": {"a": "b"}}}},
    "a toleration": {"podTemplate": {"spec": {"tolerations": [{"key": "a", "operator": "Exists"}]}}},
    "a sidecar": {"podTemplate": {"spec": {"initContainers": [{"name": "a", "image": "r.io/a:1"}]}}},
    "a limit": {"resources": {"limits": {"memory": "1Gi"}}},
    "a priority": {"podTemplate": {"spec": {"priorityClassName": "high"}}},
}


@pytest.mark.parametrize("fields", OTHER.values(), ids=OTHER)
def test_what_kueue_looks_at_makes_another_shape(fields: dict) -> None:
    assert jobs(group(sized(MOST)))
    assert f"not {MOST + 1}" in refusal(group(sized(MOST) | {"other": {"run": "true", **fields}}))
