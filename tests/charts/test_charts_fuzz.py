"""Random values, drawn from the schemas: a set renders what Kubernetes' schemas accept, or is
refused by the chart.

VALUES_SETS sets per chart and test (`make values-fuzz`: 10,000 in all per direction); VALUES_SEED
chooses others, and VALUES_KUBERNETES names further versions of Kubernetes whose schemas the objects
must fit.
"""

import json
import os
import random
import re

from jsonschema import Draft7Validator

from tests.helpers import rendering
from tests.helpers.rendering import GROUP, IMAGE, each_chart, invalid, schema, template
from tests.helpers.values_fuzz import Values, mutated, places

SETS = int(os.environ.get("VALUES_SETS", 5))
SEED = os.environ.get("VALUES_SEED", "1")
# Of Helm, the template engine and Kubernetes' parser: nobody who wrote the values understands
# these.
ACCIDENT = re.compile(
    r"nil pointer|wrong type|error calling (?!fail|include)|YAML parse error|error unmarshaling|panic"
)


def outcome(chart: str, values: dict) -> tuple[dict, str, str]:
    """The values with what Helm renders of them, or with its message."""
    done = template("helm", chart, json.dumps(values).encode())
    message = done.stderr.decode(errors="replace") if done.returncode else ""
    return values, "" if done.returncode else done.stdout.decode(), message


def with_image(values: dict) -> dict:
    """The values as the chart gets them: the tests set the image of every chart."""
    name, _, image = IMAGE.partition("=")
    block, key = name.split(".")
    return {**values, block: {**(values.get(block) or {}), key: image}}


def problems(found: list[tuple[dict, str, str]]) -> list[str]:
    """What a person who wrote the values could not understand, and what Kubernetes would not
    accept.
    """
    wrong = [
        f"{json.dumps(values)}\n{message[-500:]}"
        for values, _, message in found
        if ACCIDENT.search(message)
    ]
    rendered = [(values, text) for values, text, _ in found if text]
    # The text itself: Kubernetes reads other words as true, and other numbers, than the YAML parser
    # of the tests.
    if invalid("---\n".join(text for _, text in rendered)):
        wrong += [
            f"{json.dumps(values)}\n{invalid(text)}" for values, text in rendered if invalid(text)
        ]
    return wrong


@each_chart
def test_values_that_fit_the_schema_render_or_are_refused_by_the_chart(chart):
    drawn = Values(schema(chart), random.Random(f"{SEED} {chart}"))
    fits = Draft7Validator(schema(chart))
    sets = [drawn.draw() for _ in range(SETS)]
    assert [error.message for values in sets for error in fits.iter_errors(values)] == []
    found = [outcome(chart, values) for values in sets]
    refused = [message for _, _, message in found if message]
    print(f"{chart}: {SETS - len(refused)} of {SETS} rendered")
    assert SETS < 50 or len(refused) <= SETS * 4 // 5, refused
    assert [message for message in refused if "specifications of the schema" in message] == []
    assert problems(found) == []


@each_chart
def test_mutated_values_render_only_if_they_fit(chart):
    rng = random.Random(f"{SEED} mutate {chart}")
    drawn, fits = Values(schema(chart), rng), Draft7Validator(schema(chart))
    sets = [mutated(drawn.draw(), rng) for _ in range(SETS)]
    found = [outcome(chart, values) for values in sets]
    print(f"{chart}: {len([text for _, text, _ in found if text])} of {SETS} mutations rendered")
    assert [
        values
        for values, _, message in found
        if not message and not fits.is_valid(with_image(values))
    ] == []
    assert problems(found) == []


@each_chart
def test_a_key_without_a_value_is_refused_or_means_nothing(chart):
    defaults = rendering.defaults(chart) | (GROUP if chart == "job-group" else {})
    rng = random.Random(f"{SEED} null {chart}")
    paths = [path for path in places(defaults) if all(isinstance(step, str) for step in path)]
    found = []
    for path in rng.sample(paths, min(len(paths), SETS)):
        values: dict | None = None
        for step in reversed(path):
            values = {step: values}
        values = {**GROUP, **values} if chart == "job-group" and path[0] not in GROUP else values
        found.append(outcome(chart, values))
    rendered = len([text for _, text, _ in found if text])
    print(f"{chart}: {len(found)} of {len(paths)} keys without a value, {rendered} rendered")
    assert problems(found) == []
