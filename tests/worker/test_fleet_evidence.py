"""No PASS without evidence: a good report passes, and no report that lacks a part of its evidence does."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import pytest

from gpuworker.accept.judge import judge
from gpuworker.accept.limits import Limits
from gpuworker.accept.registry import node_checks
from gpuworker.fleet.expected import Expected
from gpuworker.fleet.fleet_report import Fleet
from gpuworker.fleet.merge import merge
from gpuworker.fleet.report_sources import Source, from_text
from gpuworker.judgement.report import FAIL, INCOMPLETE, PASS, WARN, Report
from tests.helpers import report_mutations
from tests.helpers.fleet_reports import REQUESTED, changed, complete_report

EXPECTED = Expected(names=("n1", "n2", "n3"), run_id="1", requested=REQUESTED)
GOOD = complete_report("n1")
MISSING = report_mutations.MISSING
# Fields whose values prove nothing: names for people, and times. Wrong types of them are refused.
# A field that is added to the report is evidence until it stands here.
NO_EVIDENCE = {"pod", "checks/duration_s", "requested/limits"}

JUDGED_BY_FACTS = ("compute", "links", "environment", "memory", "stragglers", "repeatability")


def source_of(report: dict) -> list[Source]:
    return from_text(f"file of {report.get('node')}", json.dumps(report).encode())


LOWER_IS_BETTER = {
    name for check in node_checks().values() for name, each in check.spec.measures.items() if each.better == "lower"
}
OTHERS = [source for name in ("n2", "n3") for source in source_of(complete_report(name))]
JUDGED = [dataclasses.replace(s, judged=judge(s.report, REQUESTED)) for s in OTHERS]  # once


def fleet_of(report: dict, expected: Expected = EXPECTED) -> Fleet:
    """The fleet of a report of n1 and two good ones."""
    return merge([*source_of(report), *(JUDGED if expected is EXPECTED else OTHERS)], expected)


def mutations() -> Iterator[tuple[str, object]]:
    """Path and value of every change of one field that removes evidence."""
    for path, values in {
        "schema_version": (1, "3", None, MISSING),
        "scope": ("world", "", None),
        "node": ("stranger", "", "n" * 300, MISSING),
        "run_id": ("2", "", MISSING),
        "requested/device": ("cpu", "", MISSING),
        "requested/level": ("full", "", MISSING),
        "requested/gpus": (0, 1, 3, -1, None, "8", MISSING),
        "started": ("2099-01-01T00:00:00+00:00", "", "yesterday", MISSING),
        "requested/inject": ("slow-gpu",),
        "requested": ({}, MISSING),
        "facts": ({}, [], MISSING),
        "facts/gpu_models": ([], None, "H100", GOOD["facts"]["gpu_models"][:1], MISSING),
        "checks": ([], None, MISSING),
    }.items():
        yield from ((path, value) for value in values)
    for index, check in enumerate(GOOD["checks"]):
        at = f"checks/{index}"
        yield from ((at, value) for value in (MISSING, {}, None))
        yield from ((f"{at}/name", value) for value in ("other", "", MISSING))
        yield from (
            (f"{at}/measurements", value) for value in (None, MISSING, *([[]] if check["measurements"] else []))
        )
        yield from mutated_measurements(at, check)
        for name in check["hashes"]:
            yield from ((f"{at}/hashes/{name}", value) for value in ("", "bb", None, MISSING))
        if check["hashes"]:
            yield from ((f"{at}/facts/hash_group", value) for value in ("", MISSING))
            yield f"{at}/hashes", {}


def mutated_measurements(at: str, check: dict) -> Iterator[tuple[str, object]]:
    """Of every number: it is gone, nothing was measured, it misses its limit, it is of another device."""
    limits = Limits(tuple(GOOD["facts"]["gpu_models"]))
    for number, found in enumerate(check["measurements"]):
        path, measure = f"{at}/measurements/{number}", node_checks()[check["name"]].spec.measures[found["name"]]
        derived = check["ceilings"].get(found["name"])
        limit = limits.threshold(found["name"], measure, found["device"], derived and tuple(derived))
        yield path, MISSING
        yield f"{path}/value", None
        if measure.better == "higher":
            yield from ((f"{path}/value", value) for value in (0.0, 1e90))
        if limit.fail or limit.warn:
            beyond = 0.5 if measure.better == "higher" else 2
            yield f"{path}/value", beyond * (limit.fail or limit.warn)
        if found["device"]:
            yield f"{path}/device", "cuda:99"


MUTATIONS = list(mutations())
GENERATED = list(report_mutations.mutations(GOOD, Report))


def test_the_good_report_passes() -> None:
    fleet = fleet_of(GOOD)
    assert (fleet.verdict, fleet.reason, fleet.findings) == (PASS, "", [])
    assert len(MUTATIONS) >= 300 and len(GENERATED) >= 300


def test_no_report_that_lacks_evidence_passes() -> None:
    passed = []
    for path, value in MUTATIONS:
        fleet = fleet_of(changed(GOOD, path, value))
        if fleet.verdict == PASS or not any("n1" in f"{f.node} {f.reason}" for f in fleet.findings):
            passed.append((path, value))
    assert passed == []


def test_no_field_of_a_report_can_be_damaged_unnoticed() -> None:
    """Of the report alone: the rest of the fleet is not needed to notice it."""
    alone = Expected(names=("n1",), run_id="1", requested=REQUESTED)
    passed = {
        (path, value if isinstance(value, str) else repr(value))
        for path, value in GENERATED
        if merge(source_of(changed(GOOD, path, value)), alone).verdict == PASS
    }
    unexpected = {(path, value) for path, value in passed if not is_harmless(path, value)}
    assert unexpected == set()
    assert {report_mutations.place(path) for path, _ in passed} >= NO_EVIDENCE  # no row too many


def is_harmless(path: str, value: str) -> bool:
    """Beside NO_EVIDENCE: facts, places of numbers of the whole node, where 0 is a good value, names of hash groups."""
    place, check = report_mutations.place(path), GOOD["checks"][int(path.split("/")[1])] if "checks/" in path else {}
    number = path.split("/")[3:4] if "/measurements/" in path else []
    found = check["measurements"][int(number[0])] if number else {}
    return (
        place in NO_EVIDENCE
        or place.startswith("checks/ceilings")  # else the figure of the model is the limit
        or (place.startswith("checks/facts") and check.get("name") not in JUDGED_BY_FACTS)
        or place == "checks/facts/ranks"  # decides only what a number that is bad may be
        or (place == "checks/facts/hash_group" and value in ("other", "9"))
        or (place.startswith("facts/") and not place.startswith("facts/gpu_models"))  # compared with other nodes
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
    return next(number for check in report["checks"] for number in check["measurements"] if number["name"] == name)


def lower(report: dict, name: str, **fields: object) -> dict:
    """All numbers of this name replaced."""
    for check in report["checks"]:
        for number in check["measurements"]:
            if number["name"] == name:
                number |= fields
    return report


@pytest.mark.parametrize("name", ["gemm_bf16", "memory_copy", "link_h2d", "link_peer", "all_reduce_busbw"])
def test_numbers_are_judged_again_against_the_limits(name: str) -> None:
    assert fleet_of(lower(complete_report("n1"), name, value=1.0)).nodes[0].verdict == FAIL
    own = Expected(3, requested=REQUESTED.__class__("cuda", 2, "quick", limits={"gemm_fp32": 66.0}))
    assert fleet_of(GOOD, own).verdict == FAIL


def test_what_is_said_to_be_inapplicable_must_be_possible() -> None:
    report = complete_report("n1")
    for check in report["checks"]:
        names = {number["name"] for number in check["measurements"]}
        if check["name"] == "compute":
            check["measurements"], check["inapplicable"] = [], dict.fromkeys(names, "not on these GPUs")
    fleet = fleet_of(report)
    assert fleet.nodes[0].verdict == INCOMPLETE and "compute" in fleet.reason


def test_a_cpu_rehearsal_is_not_a_pass_of_a_cuda_fleet_and_fewer_checks_are_not_all() -> None:
    assert fleet_of(complete_report("n1", device="cpu")).verdict == INCOMPLETE
    chosen = REQUESTED.__class__("cuda", 2, "quick", checks=("environment", "compute"))
    few = [complete_report(name, chosen) for name in ("n1", "n2", "n3")]
    sources = [s for r in few for s in from_text(r["node"], json.dumps(r).encode())]
    assert merge(sources, Expected(3, requested=chosen)).verdict == PASS
    assert merge(sources, EXPECTED).verdict == INCOMPLETE


def test_strangers_gone_pods_and_an_unknown_number_of_nodes_are_incomplete() -> None:
    assert fleet_of(GOOD, Expected()).verdict == INCOMPLETE
    for expected in (Expected(2), Expected(names=("n1", "n2")), Expected(3, lost={"n1": "2026-01-05T12:00:00+00:00"})):
        fleet = fleet_of(GOOD, expected)
        assert fleet.verdict == INCOMPLETE, expected
    assert (fleet.nodes[0].verdict, fleet.findings[0].node) == (INCOMPLETE, "n1")


def test_the_worst_of_several_reports_of_a_run_counts_and_both_are_named() -> None:
    failed = lower(complete_report("n1"), "gemm_bf16", value=1.0)
    forged = complete_report("n1", started="2026-01-05T11:00:00+00:00")
    for reports in ([failed, forged], [forged, failed]):
        fleet = merge(
            [s for r in reports for s in from_text("x", json.dumps(r).encode())], Expected(1, requested=REQUESTED)
        )
        (note,) = [note for note in fleet.notes if note.startswith("n1: ")]
        assert fleet.verdict == FAIL and "the worst of" in note


@pytest.mark.parametrize("fault", ["ecc_uncorrected", "remap_failed", "lost", "recovery_action"])
def test_a_fault_in_the_facts_is_found_whatever_the_verdict(fault: str) -> None:
    report = complete_report("n1")
    fact_of(report, "environment")["gpus"][1][fault] = {"ecc_uncorrected": 5, "lost": "GPU is lost"}.get(fault, 1)
    fleet = fleet_of(report)
    assert fleet.nodes[0].verdict == FAIL
    assert [(s.node, s.device) for s in fleet.suspects] == [("n1", "cuda:1")]


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("gpus", []),
        ("gpus", None),
        ("gpus", ["cuda:0"]),
        ("ports", [{"name": "a/1"}]),
        ("xids", [{"code": 79}]),
        ("cuda_error", "no driver"),
        ("gpus_seen", 1),
        ("nearest_adapters", {"cuda:0": {}}),
    ],
)
def test_facts_that_prove_nothing_are_no_pass(fact: str, value: object) -> None:
    report = complete_report("n1")
    fact_of(report, "environment")[fact] = value
    assert fleet_of(report).nodes[0].verdict != PASS


def test_null_sensors_are_warnings() -> None:
    report = complete_report("n1")
    for gpu in fact_of(report, "environment")["gpus"]:
        gpu |= dict.fromkeys(("ecc_uncorrected", "remap_failed", "pages_pending", "clock_reasons", "temperature_c"))
    assert fleet_of(report).nodes[0].verdict == WARN


def fact_of(report: dict, name: str) -> dict:
    return next(check["facts"] for check in report["checks"] if check["name"] == name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gradient_error", 1e30),
        ("gradient_error", 1e-9),
        ("slowest_compute", 0.0),
        ("slowest_compute", 1.2),
        ("repeats", 1.0),
        ("memory_tested", 1e-9),
        ("memory_tested", 1e7),
        ("mfu", 4.5),
        ("weak_scaling", 1e5),
        ("tokens_per_s", 1e-9),
    ],
)
def test_numbers_that_cannot_be_or_prove_nothing_do_not_pass(name: str, value: float) -> None:
    assert fleet_of(lower(complete_report("n1"), name, value=value)).nodes[0].verdict != PASS


def test_a_copy_under_another_name_is_no_second_node() -> None:
    for same in ({"gpus": True}, {"pod": "accept-n1"}):
        copy = complete_report("n2", **{key: value for key, value in same.items() if key == "pod"})
        if "gpus" in same:
            fact_of(copy, "environment")["gpus"] = fact_of(GOOD, "environment")["gpus"]
        fleet = merge([*source_of(GOOD), *source_of(copy)], Expected(2, requested=REQUESTED))
        assert fleet.verdict == INCOMPLETE, same
        assert {finding.node for finding in fleet.findings} == {"n1", "n2"}


def test_a_report_of_this_version_has_all_fields_of_it() -> None:
    report = complete_report("n1")
    del report["scope"], report["world"]
    (source,) = source_of(report)
    assert "scope is missing" in source.error


def test_the_gpus_of_missing_nodes_are_missing() -> None:
    fleet = merge(source_of(GOOD), Expected(8, requested=REQUESTED))
    assert (fleet.coverage.gpus_expected, fleet.coverage.gpus_seen) == (16, 2)


def test_a_reader_sees_the_limit_by_which_a_number_was_judged() -> None:
    fleet = fleet_of(lower(complete_report("n1"), "gemm_bf16", value=500.0))
    (limit,) = {d.limit for d in fleet.distributions if d.name == "gemm_bf16"}
    assert f"below the limit of {limit:.4g}" in " ".join(finding.reason for finding in fleet.findings)


@pytest.mark.parametrize("name", ["gemm_bf16", "memory_copy", "link_h2d"])
@pytest.mark.parametrize("value", [5e8, None])
def test_a_number_that_cannot_be_makes_no_other_node_an_outlier(name: str, value: float | None) -> None:
    fleet = fleet_of(lower(complete_report("n1"), name, value=value))
    assert {finding.node for finding in fleet.findings} == {"n1"}


@pytest.mark.parametrize("changes", [{"inject": "slow-gpu"}, {"started": "2099-01-01T00:00:00+00:00"}])
def test_a_report_that_is_in_doubt_is_compared_with_no_other(changes: dict) -> None:
    odd = lower(complete_report("n1", **changes), "gemm_bf16", value=1.0)
    for check in odd["checks"]:
        check["hashes"] = {key: value[::-1] for key, value in check["hashes"].items()}
    fleet = fleet_of(odd)
    assert fleet.verdict != PASS and {finding.node for finding in fleet.findings} == {"n1"}


def test_a_fingerprint_that_others_have_is_missed() -> None:
    """A kind of number that the specification cannot promise, because some GPUs lack it."""
    with_one = [complete_report(name) for name in ("n1", "n2", "n3")]
    for report in with_one[1:]:
        check = next(check for check in report["checks"] if check["hashes"])
        check["hashes"] |= {f"fp8 cuda:{index}": "ab" * 32 for index in range(2)}
    fleet = merge([source for report in with_one for source in source_of(report)], EXPECTED)
    assert [(f.verdict, f.node) for f in fleet.findings] == [(INCOMPLETE, "n1")] * 2


def test_a_damaged_report_names_its_node() -> None:
    sources = [*source_of(changed(GOOD, "checks/0/name", 3)), *OTHERS]
    (finding,) = merge(sources, EXPECTED).findings
    assert (finding.kind, finding.node) == ("damaged-report", "n1")
