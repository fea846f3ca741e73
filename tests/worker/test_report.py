"""The verdict of a node, and the files that carry it."""

import dataclasses
import json
import math
import threading
import typing
from pathlib import Path

import pytest

from gpuworker.accept.publish import write_json
from gpuworker.judgement.judge import Judged
from gpuworker.judgement.report import Name, Report, Requested
from gpuworker.judgement.verdict import Check
from gpuworker.runtime.log import write_termination_message


def report(*verdicts: str) -> Judged:
    checks = [
        Check(f"check{number}", verdict, f"why{number}") for number, verdict in enumerate(verdicts)
    ]
    return Judged(
        Report("node-a", "pod-a", "1", Requested("cuda", 8, "quick"), "2026-01-01T00:00:00+00:00"),
        checks,
    )


@pytest.mark.parametrize(
    ("checks", "verdict"),
    [
        ([], "INCOMPLETE"),
        (["SKIP"], "INCOMPLETE"),
        (["PASS"], "PASS"),
        (["PASS", "SKIP"], "PASS"),
        (["PASS", "WARN"], "WARN"),
        (["WARN", "INCOMPLETE", "PASS"], "INCOMPLETE"),
        (["INCOMPLETE", "FAIL", "PASS"], "FAIL"),
    ],
)
def test_the_worst_check_is_the_verdict_and_nothing_is_not_a_pass(checks, verdict):
    assert report(*checks).verdict == verdict


def test_the_schema_has_the_fields_and_types_of_the_dataclasses():
    schema = json.loads((Path(__file__).parents[2] / "schemas" / "report.schema.json").read_text())
    for name in report("PASS").to_dict():  # for people, and in the file only
        del schema["properties"][name]
    assert_described(schema, Report, schema["definitions"])


def assert_described(
    described: dict, kind: object, definitions: dict, computed: dict | None = None
) -> None:
    """`described` allows the JSON of a Python type and no other: same types, same fields, all of
    them required.
    """
    described = (
        definitions[described["$ref"].rpartition("/")[2]] if "$ref" in described else described
    )
    if "oneOf" in described:  # a dataclass or None
        null, described = described["oneOf"]
        assert null == {"type": "null"}
        assert type(None) in typing.get_args(kind)
        return assert_described(described, typing.get_args(kind)[0], definitions)
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        fields = typing.get_type_hints(kind) | (computed or {})
        assert described["additionalProperties"] is False, kind
        assert set(described["properties"]) == set(described["required"]) == set(fields), kind
        for name, its_kind in fields.items():
            assert_described(described["properties"][name], its_kind, definitions)
    elif origin is tuple and parts[-1] is not ...:
        assert (described["minItems"], described["maxItems"]) == (len(parts), len(parts))
    elif origin in (list, tuple):
        assert described["type"] == "array"
        assert_described(described["items"], parts[0], definitions)
    elif origin is dict:
        assert described["type"] == "object"
        if parts[1] is not object:
            assert_described(described["additionalProperties"], parts[1], definitions)
    elif origin is typing.Literal:
        assert set(described["enum"]) == set(parts), kind
    elif kind is float:  # a value that is not finite is null in the file
        assert described["type"] in ("number", ["number", "null"])
    else:
        names = {
            str: "string",
            Name: "string",
            int: "integer",
            bool: "boolean",
            float | None: ["number", "null"],
        }
        assert described["type"] == names[kind], kind


def test_a_file_is_whole_at_any_moment(tmp_path):
    path = tmp_path / "folder" / "report.json"
    write_json(path, {"round": -1})
    writer = threading.Thread(
        target=lambda: [write_json(path, {"round": i, "x": "y" * 100_000}) for i in range(50)]
    )
    writer.start()
    seen = {-1}
    while writer.is_alive():
        seen.add(json.loads(path.read_text())["round"])
    writer.join()
    assert json.loads(path.read_text())["round"] == 49
    assert [entry.name for entry in path.parent.iterdir()] == ["report.json"]


def test_files_are_json_for_every_reader(tmp_path):
    """NaN and Infinity are not JSON; most readers outside Python refuse the whole file."""
    write_json(tmp_path / "r.json", {"loss": math.nan, "more": [1.5, (math.inf, {"x": -math.inf})]})
    found = json.loads(
        (tmp_path / "r.json").read_text(),
        parse_constant=lambda word: pytest.fail(f"{word} in JSON"),
    )
    assert found == {"loss": None, "more": [1.5, [None, {"x": None}]]}


def test_a_termination_message_fits_the_limit_of_kubernetes(termination_log):
    write_termination_message("FAIL: " + "ü" * 5000)
    written = termination_log.read_bytes()
    assert written.startswith(b"FAIL: ")
    assert 3000 < len(written) <= 4096
