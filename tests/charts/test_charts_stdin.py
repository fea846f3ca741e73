"""`… | helm template NAME charts/job-group -f -` makes nothing of input that is not a whole group.

Helm takes empty input for "all defaults", and Helm 4 merges the documents of a job group into one; so the chart's
schema must refuse what jobgen has not written, before anything reaches a cluster.
"""

from __future__ import annotations

import json

import pytest
import yaml
from jsonschema import Draft7Validator

from tests.helpers.rendering import CHARTS, HELMS, REPO, jobgen, template

GROUP = REPO / "values-examples/find-each-other/group.yaml"
DEPLOYMENT = b"""
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  template:
    spec:
      containers: [{name: web, image: nginx}]
"""
COMPOSE = b"""
name: shop
services:
  web: {image: nginx, ports: ["80:80"]}
"""
FOREIGN = {"a Deployment": DEPLOYMENT, "a compose file": COMPOSE, "both": DEPLOYMENT + b"---" + COMPOSE}


def refused(helm: str, chart: str, values: bytes) -> str:
    """What Helm says when it refuses."""
    done = template(helm, chart, values)
    assert done.returncode != 0, f"accepted, with:\n{done.stdout.decode()}"
    assert done.stdout.strip() == b"", "a pipe would apply this"
    return done.stderr.decode()


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize("chart", CHARTS)
@pytest.mark.parametrize("values", FOREIGN.values(), ids=FOREIGN.keys())
def test_foreign_yaml_is_refused_by_the_schema(chart: str, values: bytes, helm: str) -> None:
    assert "values don't meet the specifications of the schema" in refused(helm, chart, values)


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize("values", [b"", b"\n", b"---\n", b"{}", b"# nothing\n"], ids=repr)
def test_empty_input_is_not_a_group(values: bytes, helm: str) -> None:
    assert "schemaVersion, name and tasks are missing" in refused(helm, "job-group", values)


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize("tasks", [b"", b"tasks:", b"tasks: {}"], ids=repr)
def test_a_group_without_tasks_is_refused(tasks: bytes, helm: str) -> None:
    said = refused(helm, "job-group", b"schemaVersion: 1\nname: rl\n" + tasks)
    assert "tasks" in said


@pytest.mark.parametrize("helm", HELMS)
def test_a_job_group_needs_jobgen_first(helm: str) -> None:
    assert "values don't meet the specifications of the schema" in refused(helm, "job-group", GROUP.read_bytes())


def test_no_part_of_what_jobgen_writes_is_taken_for_the_whole() -> None:
    """Cut after any byte, the text is either no YAML, or refused by the schema, or means what the whole means."""
    schema = Draft7Validator(json.loads((REPO / "charts/job-group/values.schema.json").read_text()))
    whole = jobgen(GROUP).decode()
    values = yaml.safe_load(whole)
    assert schema.is_valid(values)
    taken = [end for end in range(len(whole)) if schema.is_valid(parse(whole[:end])) and parse(whole[:end]) != values]
    assert not taken, f"{len(taken)} of {len(whole)} parts are taken, the first after:\n{whole[: taken[0]]}"


def parse(text: str) -> object:
    try:
        return yaml.load(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError:
        return None
