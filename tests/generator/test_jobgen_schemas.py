"""Schemas as the contract: jobgen accepts the same values, and the package ships them."""

import json
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from hack.gen import jobgroup_schema
from jobgen import schema
from jobgen.diagnostics import NOTE
from tests.differential import groups
from tests.helpers.rendering import parts

REPO = Path(__file__).parents[2]
ROOT = schema.read()
HEADER, TASK = ({**ROOT[part], "definitions": ROOT["definitions"]} for part in ("then", "else"))
ROOTS = {"header": HEADER, "task": TASK}


TYPES = jsonschema.Draft7Validator.TYPE_CHECKER.redefine(
    "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
)
Validator = jsonschema.validators.extend(jsonschema.Draft7Validator, type_checker=TYPES)


def findings(name: str, value: object) -> dict[str, str]:
    """Code -> severity."""
    found = {}
    schema.validate(
        ROOTS[name],
        value,
        lambda code, path, message, severity, key: found.update({code: severity}),
    )
    return found


def accepts(name: str, value: object) -> bool:
    return all(severity == NOTE for severity in findings(name, value).values())


def documents(number: int) -> Iterator[tuple[str, object]]:
    """Header and tasks of a group, in two of three groups with a part that is damaged."""
    maker = groups.Maker(random.Random(f"schema {number}"))
    tasks = [maker.task(name) for name in maker.names()]
    found: list = [maker.header([task["name"] for task in tasks if "name" in task]), *tasks]
    for _ in range(number % 3):
        maker.damage_value(found)
    return zip(["header", *["task"] * len(found)], json.loads(json.dumps(found)), strict=False)


def test_jobgen_accepts_what_the_schema_accepts():
    accepted = []
    for number in range(1000):
        for name, value in documents(number):
            accepted.append(accepts(name, value))
            assert accepted[-1] == Validator(ROOTS[name]).is_valid(value), (name, value)
    assert 0.2 < sum(accepted) / len(accepted) < 0.8


def test_schema_command_prints_the_schema(jobgen):
    printed = json.loads(jobgen("schema").stdout)
    jsonschema.Draft7Validator.check_schema(printed)
    assert printed == jobgroup_schema.document()


def fields(part: dict, path: str = "$"):
    for key, each in part.get("properties", {}).items():
        yield f"{path}.{key}", each
        yield from fields(each, f"{path}.{key}")


FIELDS = [
    (name, *each) for name, root in ROOTS.items() for each in fields(root) if each[0].count(".") < 3
]
IDS = [f"{name} {path}" for name, path, _ in FIELDS]


@pytest.mark.parametrize(("name", "path", "field"), FIELDS, ids=IDS)
def test_every_field_has_support_a_description_and_examples(name, path, field):
    if path.startswith(("$.workdir", "$.job.")):
        return
    assert field["description"].endswith(".")
    assert field["x-support"] in ("honoured", "honoured-differently", "ignored", "refused")
    assert field["x-support"] == "honoured" or field["x-note"]
    assert (
        field.get("examples")
        or "See the fields below." in field.get("x-note", "")
        or field.get("properties")
    )


@pytest.mark.parametrize(("name", "path", "field"), FIELDS, ids=IDS)
def test_examples_have_the_support_that_the_table_states(name, path, field):
    base = {"name": "t", "execution": "parallel"} if name == "header" else {"name": "t"}
    for example in field.get("examples", []):
        value = example
        for key in reversed(path.split(".")[1:]):
            value = {key: value}
        document = {**base, **value}
        assert accepts(name, document) == (field["x-support"] != "refused"), example
        assert Validator(ROOTS[name]).is_valid(document) == (field["x-support"] != "refused"), (
            example
        )
        assert field["x-support"] != "ignored" or "ignored-field" in findings(name, document), (
            example
        )


@pytest.mark.parametrize(
    "seed", sorted((REPO / "tests/generator/seeds").glob("*.yaml")), ids=lambda path: path.name
)
def test_schema_for_editors_accepts_each_document(seed):
    import yaml

    root = schema.read()
    for document in yaml.safe_load_all(seed.read_text()):
        assert Validator(root).is_valid(document)


PATTERNS = {each.get("pattern") for each in parts([HEADER, TASK])}


@pytest.mark.parametrize("pattern", sorted(each for each in PATTERNS if isinstance(each, str)))
def test_patterns_take_linear_time(pattern):
    """20,000 characters take well under a millisecond; in quadratic time it would be a second."""
    compiled = re.compile(pattern)
    short = [
        "a",
        "0",
        ".",
        "-",
        "/",
        "$",
        ":",
        "*",
        "a.",
        "a-",
        "a/",
        "/a",
        "a$",
        "a:",
        "0.",
        "A-",
        "a@",
        "1G",
    ]
    for text in [*short, "/..", "a\n", "$\n", "k8s/", "https://a:", "secrets:"]:
        for before, after in (
            ("", ""),
            ("", "\n"),
            ("", "!"),
            ("k8s/", " \n"),
            ("https://", ""),
            ("/", "/"),
        ):
            start = time.process_time()
            compiled.search(before + text * (20_000 // len(text)) + after)
            assert time.process_time() - start < 0.2, (before, text, after)


@pytest.mark.parametrize(
    ("amount", "fits"),
    [
        ("1", True),
        (1, True),
        (0.5, True),
        ("129e6", True),
        ("abc", False),
        ("-1", False),
        (-1, False),
        (True, False),
    ],
)
def test_an_amount_of_a_pod_is_a_number_or_a_quantity(amount, fits):
    """A limit for numbers, such as minimum, leaves texts alone."""
    spec = {"containers": [{"resources": {"limits": {"example.com/x": amount}}}]}
    task = {"name": "t", "run": "true", "config": {"kubernetes": {"pod_config": {"spec": spec}}}}
    assert accepts("task", task) == Validator(ROOTS["task"]).is_valid(task) == fits
