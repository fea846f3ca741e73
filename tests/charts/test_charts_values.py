"""values.yaml, the schema and the templates of a chart speak of the same values."""

import re
from collections.abc import Iterator

from jsonschema import Draft7Validator

from tests.helpers import rendering, templates
from tests.helpers.rendering import (
    HELMS,
    REPO,
    defaults,
    each_chart,
    each_helm,
    parts,
    refusal,
    render,
)
from tests.helpers.values_fuzz import is_elsewhere

# At the top of the schema, and not in values.yaml: Helm's own; and what must never have a default.
NO_DEFAULT = {"enabled", "global", "schemaVersion"}


def schema(chart: str) -> dict:
    """The schema without the names that only say where their value belongs."""
    return kept(rendering.schema(chart))


def kept(node: object) -> object:
    if isinstance(node, list):
        return [kept(each) for each in node]
    if not isinstance(node, dict):
        return node
    return {
        name: kept(each)
        for name, each in node.items()
        if not (isinstance(each, dict) and is_elsewhere(each))
    }


def source(chart: str) -> str:
    return templates.text(REPO / "charts" / chart)


def resolved(root: dict, node: dict) -> dict:
    """A schema with what it refers to. Objects of Kubernetes, which begin with a capital letter,
    are one value.
    """
    name = node.get("$ref", "").rpartition("/")[2]
    return {**root["definitions"][name], **node} if name and name[0].islower() else node


def declared(root: dict, node: dict, path: tuple = ()) -> Iterator[tuple[tuple, dict]]:
    """Every schema with a path to it; a map's key is "key", a list's index 0."""
    node = resolved(root, node)
    yield path, node
    below = dict(node.get("properties", {}))
    for rule in (node.get("additionalProperties"), *node.get("patternProperties", {}).values()):
        if isinstance(rule, dict):
            below["key"] = rule
    if "items" in node:
        below[0] = node["items"]
    for name, child in below.items():
        yield from declared(root, child, (*path, name))


def set_by_default(
    root: dict, node: dict, values: object, path: tuple = ()
) -> Iterator[tuple[tuple, dict, object]]:
    """Path, schema and value of all that values.yaml sets; `{}` is one value, and so is a map or
    Kubernetes' own.
    """
    node = resolved(root, node)
    yield path, node, values
    if "properties" in node and isinstance(values, dict):
        for name, value in values.items():
            yield from set_by_default(root, node["properties"].get(name, {}), value, (*path, name))


def is_leaf(node: dict, value: object) -> bool:
    return not ("properties" in node and value)


def nested(path: tuple, value: object) -> object:
    for step in reversed(path):
        value = [value] if step == 0 else {step: value}
    return value


@each_chart
def test_every_value_is_used_by_a_template(chart):
    text, root = source(chart), schema(chart)
    leaves = [
        path
        for path, node, value in set_by_default(root, root, defaults(chart))
        if is_leaf(node, value)
    ]
    assert len(leaves) > 10, "the walk through values.yaml found next to nothing"
    assert {path for path in leaves if not templates.is_used(path, text)} == set()


@each_chart
def test_values_yaml_and_the_schema_have_the_same_keys(chart):
    root = schema(chart)
    for path, node, value in set_by_default(root, root, defaults(chart)):
        if not is_leaf(node, value):
            assert set(value) == set(node["properties"]) - (set() if path else NO_DEFAULT), path


@each_chart
def test_every_value_that_a_template_uses_is_declared(chart):
    uses, root = templates.used(source(chart)), schema(chart)
    assert len(uses) > 10, "the reader of templates found next to nothing"
    assert uses <= {("global",)} | {
        path for path, _, _ in set_by_default(root, root, defaults(chart))
    }


def test_templates_use_the_fields_of_a_task_that_the_schema_declares():
    fields = schema("job-group")["definitions"]["task"]["properties"]
    assert templates.used_of_a_task(source("job-group")) == set(fields)


@each_chart
def test_an_unknown_key_is_refused_in_every_object_of_ours(chart):
    root = schema(chart)
    objects = [path for path, node in declared(root, root) if "properties" in node]
    assert () in objects and len(objects) > 3
    for path in objects:
        errors = Draft7Validator(root).iter_errors(nested(path, {"unknownKey": 1}))
        assert (list(path), "additionalProperties") in [
            (list(e.absolute_path), e.validator) for e in errors
        ], path


@each_chart
def test_a_number_has_a_maximum_because_kubernetes_has_int32(chart):
    root = schema(chart)
    numbers = [
        (path, node) for path, node in declared(root, root) if "integer" in node.get("type", "")
    ]
    assert len(numbers) > 3
    for path, node in numbers:
        assert node.get("maximum", 1 << 31) < 1 << 31 or "string" in node["type"], path


@each_helm
@each_chart
def test_a_chart_that_has_these_as_subcharts_may_set_global(chart, helm):
    assert render(chart, {"global": {"anything": 1}}, helm=helm)


@each_chart
def test_a_schema_has_no_rule_that_helm_ignores_or_reports_elsewhere(chart):
    """What stands beside a reference is ignored; the place of propertyNames differs from run to
    run.
    """
    for node in parts(schema(chart)):
        assert "propertyNames" not in node and (
            "$ref" not in node or set(node) <= {"$ref", "description"}
        ), node


def elsewhere(chart: str) -> Iterator[tuple[str, str]]:
    """Name, and the place of its value, at the top of a schema and in a task of a group."""
    root = rendering.schema(chart)
    for path, node in (("", root), ("tasks.t.", root["definitions"].get("task", {}))):
        for name, each in node.get("properties", {}).items():
            if is_elsewhere(each):
                yield f"{path}{name}", each["const"]


@each_chart
def test_a_usual_name_gets_the_place_where_its_value_belongs(chart):
    names = dict(elsewhere(chart))
    assert len(names) > 40
    for helm in HELMS:
        options = [f"--set={name}=x" for name in names]
        said = refusal(chart, {}, *options, helm=helm)
        assert [name for name, where in names.items() if where not in said] == []


@each_chart
def test_a_place_is_a_value_of_the_chart(chart):
    root = schema(chart)
    known = {".".join(map(str, path)) for path, _ in declared(root, root)}
    for name, where in elsewhere(chart):
        above = "tasks.key." if name.startswith("tasks.") else ""
        for words in re.split(" or | and ", where.removeprefix("did you mean ").removesuffix("?")):
            place = words.split()[0].replace("TASK", "key")
            if not place.startswith("podTemplate."):  # fields of Kubernetes
                assert {place, above + place} & known, (name, where)


@each_helm
def test_usual_mistakes_of_form_are_named(helm):
    for option, said in (
        ("image=r/w:1", "image.repository"),
        ("nodeSelector.a.b/c=x", "for a dot"),
    ):
        assert said in refusal("ddp-run", {}, "--set", option, helm=helm), option
