"""Finds everything that is wrong with a group: jsonschema for its structure, Python for the rest."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources as package

import jsonschema

from jobgen import names, resources
from jobgen.group import Group, Part
from jobgen.problems import Path, Problem

KINDS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true/false",
    "object": "a mapping",
    "array": "a list",
    "null": "nothing",
}
# Value of a field -> what the chart wants; the same functions convert the field.
FIELDS: dict[str, Callable] = {
    "cpus": resources.cpu_quantity,
    "memory": resources.memory_quantity,
    "accelerators": resources.accelerator,
    "infra": resources.check_infra,
    "image_id": resources.image,
}


def schema_text(name: str) -> str:
    """The JSON Schema of "header" or "task"."""
    return (package.files("jobgen") / "schemas" / f"{name}.json").read_text("utf-8")


@cache
def _validator(name: str) -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(json.loads(schema_text(name)))


def check(group: Group) -> list[Problem]:
    """Every problem of the group, sorted by position. Values of envs never appear in one."""
    problems = {*_part_problems(group.header, "header"), *_name_problems(group)}
    for task in group.tasks:
        problems.update(_part_problems(task, "task"))
        problems.update(_task_problems(task))
    return sorted(problems, key=lambda problem: (problem.line, problem.column, problem.path, problem.message))


def _part_problems(part: Part, schema: str) -> Iterator[Problem]:
    """Flaws of the YAML, and what the schema finds."""
    for place, path, message in part.document.flaws:
        yield part.problem(place, path, message)
    for error in _validator(schema).iter_errors(part.document.value):
        yield from _schema_problems(part, error)


def _schema_problems(part: Part, error: jsonschema.ValidationError) -> Iterator[Problem]:
    """One error of jsonschema in our words, which name the kind of a value, but not the value."""
    path: Path = tuple(error.absolute_path)
    rule = error.validator_value
    if "propertyNames" in error.absolute_schema_path:
        message = "a variable's name has letters, digits and _, and starts with no digit"
        yield part.key_problem((*path, error.instance), message)
    elif error.validator == "additionalProperties":
        known = list(error.schema["properties"])
        for key in error.instance.keys() - set(known):
            near = difflib.get_close_matches(key, known, n=1)
            yield part.key_problem((*path, key), "unknown field" + (f'; did you mean "{near[0]}"?' if near else ""))
    elif error.validator == "not":
        reason = error.schema["description"]
        yield part.key_problem(path, reason[0].lower() + reason[1:])
    elif error.validator == "required":
        for key in (key for key in rule if key not in error.instance):
            yield part.value_problem(path, f'must have a "{key}" field')
    elif error.validator == "type":
        yield part.value_problem(path, _type_message(rule, error.instance))
    elif error.validator == "enum":
        yield part.value_problem(path, _enum_message(path, rule, error.instance))
    else:
        assert error.validator == "minimum", error.validator  # what the schemas use; a new keyword needs new words
        yield part.value_problem(path, f"must be at least {rule}")


def _type_message(wanted: str | list[str], value: object) -> str:
    wanted = [wanted] if isinstance(wanted, str) else wanted
    got = next(kind for kind in KINDS if jsonschema.Draft7Validator.TYPE_CHECKER.is_type(value, kind))
    quote = "; put it in quotes" if wanted == ["string"] and got in ("integer", "number", "boolean") else ""
    return f"must be {' or '.join(KINDS[kind] for kind in wanted if kind != 'null')}, got {KINDS[got]}{quote}"


def _enum_message(path: Path, allowed: list[str], value: object) -> str:
    if path == ("placement",):
        return f"Invalid placement mode {json.dumps(value)}; supported: {', '.join(allowed)}"
    return f"not a job group: must be {' or '.join(allowed)}, got {json.dumps(value)}"


def _name_problems(group: Group) -> Iterator[Problem]:
    """Names that Kubernetes would refuse, alone or put together, and names given twice."""
    first_line: dict[str, int] = {}
    for part in (group.header, *group.tasks):
        if part.name is None:
            continue
        problem = names.label_problem(part.name)
        if problem:
            yield part.value_problem(("name",), problem)
        if part is group.header:
            continue
        if part.name in first_line:
            message = f'Duplicate job name "{part.name}" (first at line {first_line[part.name]})'
            yield part.value_problem(("name",), message)
        first_line.setdefault(part.name, part.document.value_place(("name",))[0])
        if not problem and group.header.name and not names.label_problem(group.header.name):
            yield from _length_problems(part, group.header.name)


def _length_problems(task: Part, group: str) -> Iterator[Problem]:
    nodes = task.document.value.get("num_nodes", 1)
    longest = names.job_name(group, task.name, nodes if isinstance(nodes, int) else 1)
    if len(longest) > names.LABEL_LIMIT:
        message = f'too long: a Job would be called "{longest}", {len(longest)} characters; Kubernetes allows'
        message += f" {names.LABEL_LIMIT}. Shorten the task's name, or the group's"
        yield task.value_problem(("name",), message)


def _task_problems(task: Part) -> Iterator[Problem]:
    """What the schema cannot say about values."""
    if not isinstance(task.document.value, dict):
        return
    given = task.document.value.get("resources")
    for field, convert in FIELDS.items() if isinstance(given, dict) else ():
        path = ("resources", field)
        if field in given and _validator("task").evolve(schema=_property(*path)).is_valid(given[field]):
            try:
                convert(given[field])
            except ValueError as error:
                yield task.value_problem(path, str(error))
    envs = task.document.value.get("envs")
    for name, value in envs.items() if isinstance(envs, dict) else ():
        if value is None:
            yield task.value_problem(("envs", name), f"has no value; write one, or give it with --env {name}=VALUE")


def _property(*path: str) -> dict:
    schema = _validator("task").schema
    for key in path:
        schema = schema["properties"][key]
    return schema
