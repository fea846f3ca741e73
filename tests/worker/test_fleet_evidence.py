"""No PASS without evidence: a good report passes, and no report that lacks a part of its evidence
does.
"""

from __future__ import annotations

import dataclasses
import json

import yaml
from jsonschema import Draft7Validator

from gpuworker.fleet.formats.table import table
from gpuworker.fleet.report_sources import from_text
from gpuworker.judgement.fleet_report import Fleet, json_text
from gpuworker.judgement.judge import judge
from gpuworker.judgement.merge import merge
from gpuworker.judgement.registry import node_checks
from gpuworker.judgement.report import FAIL, INCOMPLETE, PASS, Report
from gpuworker.judgement.sources import Expected, Source
from tests.helpers import report_mutations
from tests.helpers.fleet_reports import REPO, REQUESTED, changed, complete_report

EXPECTED = Expected(names=("n1", "n2", "n3"), run_id="1", requested=REQUESTED)
GOOD = complete_report("n1")
# Fields whose values prove nothing: names for people, and times. Wrong types of them are refused.
# A field that is added to the report is evidence until it stands here.
NO_EVIDENCE = {"pod", "checks/duration_s", "requested/limits"}

JUDGED_BY_FACTS = ("compute", "links", "environment", "memory", "repeatability")


def source_of(report: dict) -> list[Source]:
    return from_text(f"file of {report.get('node')}", json.dumps(report).encode())


LOWER_IS_BETTER = {
    name
    for check in node_checks().values()
    for name, each in check.measures.items()
    if each.better == "lower"
}
OTHERS = [source for name in ("n2", "n3") for source in source_of(complete_report(name))]
JUDGED = [dataclasses.replace(s, judged=judge(s.report, REQUESTED)) for s in OTHERS]  # once


def fleet_of(report: dict, expected: Expected = EXPECTED) -> Fleet:
    """The fleet of a report of n1 and two good ones."""
    return merge([*source_of(report), *(JUDGED if expected is EXPECTED else OTHERS)], expected)


SCHEMA = Draft7Validator(yaml.safe_load((REPO / "schemas/fleet.yaml").read_text()))
GENERATED = list(report_mutations.mutations(GOOD, Report))


def test_the_good_report_passes() -> None:
    fleet = fleet_of(GOOD)
    assert (fleet.verdict, fleet.reason, fleet.findings) == (PASS, "", [])
    assert len(GENERATED) >= 300


def test_no_field_of_a_report_can_be_damaged_unnoticed() -> None:
    """Of the report alone: the rest of the fleet is not needed to notice it. And every format can
    be written.
    """
    alone = Expected(names=("n1",), run_id="1", requested=REQUESTED)
    passed = set()
    for path, value in GENERATED:
        fleet = merge(source_of(changed(GOOD, path, value)), alone)
        SCHEMA.validate(json.loads(json_text(fleet)))
        assert table(fleet)
        if fleet.verdict == PASS:
            passed.add((path, value if isinstance(value, str) else repr(value)))
    unexpected = {(path, value) for path, value in passed if not is_harmless(path, value)}
    assert unexpected == set()
    assert {report_mutations.place(path) for path, _ in passed} >= NO_EVIDENCE  # no row too many


def is_harmless(path: str, value: str) -> bool:
    """Beside NO_EVIDENCE: facts, places of numbers of the whole node, where 0 is a good value,
    names of hash groups.
    """
    place, check = (
        report_mutations.place(path),
        GOOD["checks"][int(path.split("/")[1])] if "checks/" in path else {},
    )
    number = path.split("/")[3:4] if "/measurements/" in path else []
    found = check["measurements"][int(number[0])] if number else {}
    return (
        place in NO_EVIDENCE
        or place.startswith("checks/ceilings")  # else the figure of the model is the limit
        or (place.startswith("checks/facts") and check.get("name") not in JUDGED_BY_FACTS)
        or place == "checks/facts/ranks"  # decides only what a number that is bad may be
        or (place == "checks/facts/hash_group" and value in ("other", "9"))
        or (
            place.startswith("facts/") and not place.startswith("facts/gpu_models")
        )  # compared with other nodes
        or (place == "checks/measurements/device" and not found["device"])
        or (place == "checks/measurements/value" and found["name"] in LOWER_IS_BETTER)
    )


def test_a_claim_does_not_set_the_limit_of_a_link() -> None:
    """Else a node on a slow slot, or a forged report, would set its own limit."""
    for name, better in (("link_h2d", 0.02), ("link_peer", 0.02), ("all_reduce_busbw", 0.02)):
        value = better * number_of(GOOD, name)["value"]
        report = lower(complete_report("n1"), name, value=value)
        for check in report["checks"]:
            if name in check["ceilings"]:
                check["ceilings"][name][0] = value
        assert fleet_of(report).verdict == FAIL, name


def number_of(report: dict, name: str) -> dict:
    return next(
        number
        for check in report["checks"]
        for number in check["measurements"]
        if number["name"] == name
    )


def lower(report: dict, name: str, **fields: object) -> dict:
    """All numbers of this name replaced."""
    for check in report["checks"]:
        for number in check["measurements"]:
            if number["name"] == name:
                number |= fields
    return report


def test_what_is_said_to_be_inapplicable_must_be_possible() -> None:
    report = complete_report("n1")
    for check in report["checks"]:
        names = {number["name"] for number in check["measurements"]}
        if check["name"] == "compute":
            check["measurements"], check["inapplicable"] = (
                [],
                dict.fromkeys(names, "not on these GPUs"),
            )
    fleet = fleet_of(report)
    assert fleet.nodes[0].verdict == INCOMPLETE and "compute" in fleet.reason


def fact_of(report: dict, name: str) -> dict:
    return next(check["facts"] for check in report["checks"] if check["name"] == name)


def test_a_fingerprint_that_others_have_is_missed() -> None:
    """A kind of number that the specification cannot promise, because some GPUs lack it."""
    with_one = [complete_report(name) for name in ("n1", "n2", "n3")]
    for report in with_one[1:]:
        check = next(check for check in report["checks"] if check["hashes"])
        check["hashes"] |= {f"fp8 cuda:{index}": "ab" * 32 for index in range(2)}
    fleet = merge([source for report in with_one for source in source_of(report)], EXPECTED)
    assert [(f.verdict, f.node) for f in fleet.findings] == [(INCOMPLETE, "n1")] * 2
