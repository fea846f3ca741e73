"""Whatever a node's report holds, it is named as damaged or shown; it never hides the other nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml
from jsonschema import Draft7Validator

from gpuworker.fleet.cli import FORMATS
from gpuworker.fleet.expected import Expected
from gpuworker.fleet.formats.table import table
from gpuworker.fleet.merge import merge
from gpuworker.fleet.report_sources import from_text
from tests.helpers.fleet_reports import REPO, changed, check, measurement, node_report, problem, with_problems

NASTY = ["", "x", "\ud800", "<b>\x00", None, True, -1, 0, 1e99, 1e308, 10**400, 1e-320, [], [1], {}, {"x": 1}, ...]
SCHEMA = Draft7Validator(yaml.safe_load((REPO / "schemas/fleet.yaml").read_text()))


def full() -> dict:
    """One of each part that a report can have."""
    report = node_report("n1", (100.0,))
    pair = measurement(3.0, "cuda:0→cuda:1", "peer", "GB/s") | {"limit": 2.0, "warn_limit": 2.5}
    report["checks"].append(check("links", measurements=[pair]))
    return report


def paths(node: object, path: str = "") -> Iterator[str]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield f"{path}{key}"
        yield from paths(value, f"{path}{key}/")


@pytest.mark.parametrize("path", [*paths(full())])
def test_no_value_anywhere_in_a_report_ends_the_program(path: str) -> None:
    report = full()
    for value in NASTY:
        sources = from_text("n1", json.dumps(changed(report, path, value)).encode())
        sources += from_text("n2", json.dumps(node_report("n2", (100.0,))).encode())
        fleet = merge(sources, Expected(2))
        assert "n2" in {node.node for node in fleet.nodes}
        written = {name: form(fleet).encode() for name, form in FORMATS.items()} | {"text": table(fleet).encode()}
        assert all(written.values())
        SCHEMA.validate(json.loads(written["json"]))
        assert len(fleet.nodes) == 2 or fleet.verdict == "INCOMPLETE", "a report that cannot be read"


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("of another release", {}),
        ("limit", {"value": "7"}),
        ("limit", {"value": None}),
    ],
)
def test_a_problem_of_another_origin_is_refused_and_not_the_end(kind: str, numbers: dict) -> None:
    report = with_problems(node_report("n1"), "compute", problem("FAIL", kind, "words", **numbers))
    (source,) = from_text("n1", json.dumps(report).encode())
    assert source.report is None and "problems" in source.error
    assert merge([source], Expected(1)).verdict == "INCOMPLETE"
