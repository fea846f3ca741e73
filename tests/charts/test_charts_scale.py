"""Large groups: rendered in linear time, and refused where the API server would refuse them."""

import resource

import pytest

from tests.helpers.rendering import GROUP, each_helm, objects, output

pytestmark = pytest.mark.slow

# The control plane of a cluster took a JobSet of 168 such ranks and refused one of 175.
JOBSET = 130
POD = {
    "spec": {"priorityClassName": "high", "containers": [{"env": [{"name": "A", "value": "b"}]}]}
}


def group(workload: str, tasks: dict) -> dict:
    return {**GROUP, "workload": workload, "tasks": tasks}


GROUPS = {
    "one JobSet": (group("jobset", {"t": {"numNodes": JOBSET, "run": ""}}), JOBSET),
    "one JobSet of many tasks": (
        group("jobset", {f"t{n}": {"run": ""} for n in range(JOBSET)}),
        JOBSET,
    ),
    "1,000 ranks of one task": (group("jobs", {"t": {"numNodes": 1000, "run": ""}}), 1000),
    "1,000 ranks with a podTemplate": (
        group("jobs", {"t": {"numNodes": 1000, "podTemplate": POD, "run": ""}}),
        1000,
    ),
    "1,000 tasks": (group("jobs", {f"t{n}": {"run": ""} for n in range(1000)}), 1000),
}


def ranks(items: list[dict]) -> int:
    return sum(
        len(item["spec"].get("replicatedJobs", [item]))
        for item in items
        if item["kind"] in ("Job", "JobSet")
    )


@each_helm
@pytest.mark.parametrize("name", GROUPS)
def test_a_large_group_renders_soon(name, helm):
    values, size = GROUPS[name]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    text = output(helm, "job-group", values)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert ranks(objects(text)) == size
    # Of the processor. It takes 3 s on one core that is shared; quadratic time would be minutes.
    assert after.ru_utime - before.ru_utime < 15
