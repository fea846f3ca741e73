"""`… | helm template NAME charts/job-group -f -` makes nothing of input that is not a whole group.

Helm takes empty input for "all defaults", and Helm 4 merges the documents of a job group into one;
so the chart's schema must refuse what jobgen has not written, before anything reaches a cluster.
"""

import pytest
import yaml
from jsonschema import Draft7Validator

from tests.helpers import rendering
from tests.helpers.rendering import CHARTS, REPO, each_helm, jobgen, template

GROUP = REPO / "values-examples/find-each-other/group.yaml"
DEPLOYMENT = b"{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {template: {spec: {}}}}\n"
COMPOSE = b"{name: shop, services: {web: {image: nginx}}}\n"
SCHEMA, MISSING = (
    "values don't meet the specifications of the schema",
    "schemaVersion, name and tasks are missing",
)
CASES = [
    (chart, text, SCHEMA)
    for chart in CHARTS
    for text in (DEPLOYMENT, COMPOSE, DEPLOYMENT + b"---\n" + COMPOSE)
]
CASES += [("job-group", text, MISSING) for text in (b"", b"\n", b"---\n", b"{}", b"# nothing\n")]
CASES += [
    ("job-group", b"schemaVersion: 1\nname: rl\n" + text, "tasks")
    for text in (b"", b"tasks:", b"tasks: {}")
]
CASES += [("job-group", GROUP.read_bytes(), SCHEMA)]


@each_helm
@pytest.mark.parametrize("number", range(len(CASES)))
def test_what_is_no_group_is_refused_and_no_pipe_applies_it(number, helm):
    chart, values, words = CASES[number]
    done = template(helm, chart, values)
    assert done.returncode and done.stdout.strip() == b"" and words in done.stderr.decode(), (
        done.stderr.decode()
    )


def test_no_part_of_what_jobgen_writes_is_taken_for_the_whole():
    """Cut after any byte, the text is either no YAML, or refused by the schema, or means what the
    whole means.
    """
    schema = Draft7Validator(rendering.schema("job-group"))
    whole = jobgen(GROUP).decode()
    values = yaml.safe_load(whole)
    assert schema.is_valid(values)
    taken = [
        end
        for end in range(len(whole))
        if schema.is_valid(parse(whole[:end])) and parse(whole[:end]) != values
    ]
    assert not taken, (
        f"{len(taken)} of {len(whole)} parts are taken, the first after:\n{whole[: taken[0]]}"
    )


def parse(text: str) -> object:
    try:
        return yaml.load(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError:
        return None
