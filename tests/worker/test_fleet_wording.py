"""The wording of the fleet report: tables, notes, findings, errors and help, compared with tests/golden/fleet.txt."""

from __future__ import annotations

import pytest

from gpuworker.accept.report import FAIL, SKIP, WARN
from gpuworker.fleet import baseline, cli
from gpuworker.fleet.expected import Expected
from gpuworker.fleet.fleet_report import Fleet
from gpuworker.fleet.formats.table import table
from gpuworker.fleet.merge import merge
from gpuworker.fleet.report_sources import Source, from_text
from tests.helpers import golden
from tests.helpers.fleet_reports import changed, check, failing, merged, node_report, world_check, world_report


def damaged_sources() -> Fleet:
    damaged = changed(node_report("n1"), "checks/1/measurements/0/value", "fast")
    texts = [b"{", b"{}", b'{"checks": [], "schema_version": 1}', b"", b"[pod/a/accept] [ENV] verdict=PASS\n"]
    sources = [source for index, text in enumerate(texts) for source in from_text(f"file-{index}", text)]
    try:
        cli.json_text(merged(damaged))
    except ValueError as error:
        sources.append(Source("n1.json", error=str(error)))
    return merge(sources)


def fingerprints_and_versions() -> Fleet:
    reports = [node_report(f"n{index}") for index in range(4)]
    reports[3]["facts"]["driver"] = "565.1"
    for report, value in zip(reports, ["aa", "aa", "bb", "aa"], strict=True):
        report["checks"][2]["hashes"] = {"gemm cuda:0": value, f"sum cuda:0 {value}": value}
    reports[0]["checks"][2]["hashes"]["alone cuda:0"] = "aa"
    return merged(*reports)


def no_majority() -> Fleet:
    reports = [node_report("n1"), node_report("n2")]
    reports[0]["checks"][2]["hashes"] = {"gemm cuda:0": "aa"}
    reports[1]["checks"][2]["hashes"] = {"gemm cuda:0": "bb"}
    reports[1]["facts"]["torch"] = "2.9"
    return merged(*reports)


def speeds() -> Fleet:
    earlier = merged(*(node_report(f"n{index}", (110.0, 100.0)) for index in range(4)))
    reports = [node_report(f"n{index}", (100.0, 100.0 - 6 * index)) for index in range(4)]
    return merged(*reports, baseline=baseline.values(earlier.to_dict()))


def coverage() -> Fleet:
    warned = node_report("n1", verdict=WARN, reason="compute: hot", device="cpu", level="full", run_id="2")
    skipped = node_report("n2", checks=[check("links", SKIP, "one GPU")], injected="slow-gpu")
    older = failing("n2") | {"started": "2026-01-04T10:00:00+00:00"}
    expected = Expected(names=("n1", "n2", "n3"), pending=["10.0.0.7"], lost={"n2": "2026-01-05T12:00:00+00:00"})
    return merged(warned, skipped, older, expected=expected)


def cross_node_checks() -> Fleet:
    slow = check("stragglers", FAIL, "rank 3 (node n2, cuda:1) is slow: 12 ms for work that takes 3 ms (4.00 x)")
    worlds = [
        world_report({"n1": [0, 1], "n2": [2, 3]}, slow, world_check("correctness")),
        world_report({"n1": [0]}, world_check("correctness", ranks=1)),
    ]
    worlds[1]["verdict"] = WARN
    old = node_report("n1", schema_version=2)
    return merged(*worlds, old, node_report("n2"), expected=Expected(2))


FLEETS = {
    "no report": lambda: merge([]),
    "a node of another run": lambda: merged(node_report("n1"), expected=Expected(2, run_id="2")),
    "unknown number of nodes": lambda: merged(failing("n1"), expected=Expected()),
    "more nodes than expected": lambda: merged(node_report("n1"), node_report("n2"), expected=Expected(1)),
    "a baseline of other nodes": lambda: merged(node_report("n1"), baseline={}),
    "a baseline of a rehearsal": lambda: merged(node_report("n1", device="cpu"), baseline={}),
    "damaged sources": damaged_sources,
    "fingerprints and versions": fingerprints_and_versions,
    "fingerprints without a majority": no_majority,
    "outliers and a baseline": speeds,
    "coverage": coverage,
    "cross-node checks": cross_node_checks,
}


def test_wording_is_as_reviewed(monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("tempfile.tempdir", "/tmp")
    parts = [f"=== {name}\n{table(fleet())}" for name, fleet in FLEETS.items()]
    for command in ([], ["merge"], ["diff"], ["serve"], ["submit"], ["await"]):
        with pytest.raises(SystemExit):
            cli.main([*command, "--help"])
        parts.append(f"=== accept-report {' '.join([*command, '--help'])}\n{capsys.readouterr().out}")
    golden.check("fleet.txt", "\n".join(parts))
