"""One result in every form: page, Prometheus, JSON, table; also of nodes with hostile names."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest
import yaml
from jsonschema import Draft7Validator

from gpuworker.fleet.formats.page import POLICY, SCRIPT, STYLE, page
from gpuworker.fleet.formats.prometheus import prometheus
from gpuworker.fleet.formats.table import table
from gpuworker.judgement.fleet_report import Fleet, json_text
from gpuworker.judgement.report import FAIL, SKIP, WARN
from gpuworker.judgement.sources import Expected
from tests.helpers.fleet_reports import (
    REPO,
    check,
    failing,
    measurement,
    merged,
    node_report,
    problem,
    with_problems,
)

HOSTILE = '<script>alert("1")</script>\\"&\'\n\x1b[31m\x00{x="y"}'


def linked(node: str, slow: bool) -> dict:
    """A node with links and a fingerprint; the slow one reports a bad link."""
    report = node_report(node, (100.0, 80.0 if slow else 100.0))
    values = {"cuda:0→cuda:1": 40.0 if slow else 390.0, "cuda:1→cuda:0": 388.0}
    links = check(
        "links", measurements=[measurement(v, pair, "peer", "GB/s") for pair, v in values.items()]
    )
    report["checks"].append(links)
    if slow:
        words = "cuda:0→cuda:1: peer 40 GB/s is below the limit of 300"
        return with_problems(report, "links", problem(FAIL, "nvlink-down", words, "cuda:0→cuda:1"))
    return report


def everything() -> Fleet:
    """Every verdict, every source of findings, every plot."""
    warned = with_problems(node_report("n3"), "compute", problem(WARN, "slowdown", "hot"))
    skipped = node_report("n4")
    skipped["checks"].append(check("links", SKIP, "one GPU has no peer"))
    reports = [
        *(linked(f"n{index}", slow=index == 2) for index in (1, 2)),
        warned,
        skipped,
        failing("n5"),
    ]
    return merged(
        *reports, expected=Expected(names=[f"n{index}" for index in range(1, 7)])
    )  # n6 is missing


def hostile() -> Fleet:
    report = failing(HOSTILE, HOSTILE)
    for part in ("pod", "run_id"):
        report[part] = HOSTILE
    report["facts"] = {"gpu_models": [HOSTILE] * 2, "driver": HOSTILE}
    report["checks"][1]["name"] = HOSTILE
    for found in report["checks"][1]["measurements"]:
        found.update(
            name=HOSTILE, unit=HOSTILE, device=f"{HOSTILE}→{found['device']}", limit_source=HOSTILE
        )
    report["checks"][2]["hashes"] = {f"gemm {HOSTILE}": "aa", "gemm other": "bb"}
    report["checks"][2]["facts"] = {"hash_group": {HOSTILE: HOSTILE, "other": HOSTILE}}
    return merged(report, expected=Expected(names=[HOSTILE, f"not there {HOSTILE}"]))


def unknown_nodes() -> Fleet:
    """Several suspects that are not nodes."""
    return merged(expected=Expected(4))


FLEETS = {
    "everything": everything,
    "hostile": hostile,
    "nothing": merged,
    "unknown nodes": unknown_nodes,
}


@pytest.mark.parametrize("fleet", FLEETS)
def test_json_fits_the_published_schema(fleet: str) -> None:
    schema = yaml.safe_load((REPO / "schemas/fleet.yaml").read_text())
    Draft7Validator.check_schema(schema)
    written = json.loads(json_text(FLEETS[fleet]()))
    Draft7Validator(schema).validate(written)
    assert (fleet == "nothing") or written["suspects"]
    written["findings"].append({**written["findings"][0], "verdict": "GOOD"})
    assert not Draft7Validator(schema).is_valid(written)


@pytest.mark.parametrize("fleet", FLEETS)
def test_a_page_has_its_data_which_ends_no_script(fleet: str) -> None:
    """What it looks like: tests/browser."""
    found = FLEETS[fleet]()
    text = page(found)
    digest = hashlib.sha256(json_text(found).encode()).hexdigest()
    data = text.partition(f'data-sha256="{digest}" id="data">')[2].partition("</script>")[0]
    assert json.loads(data) == json.loads(json_text(found)) and "<" not in data
    assert text.count("<script") == 2 and "</script" not in SCRIPT and "<script" not in SCRIPT


def test_the_policy_of_the_page_names_its_script_and_its_style() -> None:
    for kind, text in (("script", SCRIPT), ("style", STYLE)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in POLICY
    assert "unsafe" not in POLICY


def test_values_of_a_distribution_are_by_node_and_device() -> None:
    (d,) = [
        each
        for each in json.loads(json_text(everything()))["distributions"]
        if each["name"] == "peer"
    ]
    place = d["devices"].index("cuda:0→cuda:1")
    assert d["values"]["n2"][place] == 40 and ["n2", "cuda:0→cuda:1", "FAIL", 40] in d["outliers"]


SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\\\|\\"|\\n)*",?)+)\})? (-?[\d.e+-]+)')


@pytest.mark.parametrize("fleet", FLEETS)
def test_prometheus_text_follows_its_format(fleet: str) -> None:
    """Every sample belongs to the metric whose HELP and TYPE stand above it; no sample is there
    twice.
    """
    written = prometheus(FLEETS[fleet]())
    assert written.endswith("\n")
    name, samples = "", []
    for line in written[:-1].split("\n"):
        if line.startswith("# HELP "):
            name = line.split()[2]
        elif line.startswith("# TYPE "):
            assert line == f"# TYPE {name} gauge"
        else:
            found = SAMPLE.fullmatch(line)
            assert found and found[1] == name, line
            samples.append((found[1], found[2]))
    assert len(samples) == len(set(samples)) > 4


def test_prometheus_carries_verdicts() -> None:
    lines = prometheus(everything()).splitlines()
    for line in (
        'gpu_accept_fleet_verdict{verdict="FAIL"} 1',
        'gpu_accept_fleet_verdict{verdict="PASS"} 0',
        "gpu_accept_nodes_expected 6",
        "gpu_accept_nodes_reported 5",
        'gpu_accept_node_verdict{node="n3",verdict="WARN"} 1',
    ):
        assert line in lines


def test_table_for_a_terminal() -> None:
    lines = table(everything()).splitlines()
    assert lines[0] == "FAIL: 5 of 6 nodes reported, 10 of 10 GPUs"
    rows = lines[lines.index("") + 2 :][: len(everything().causes)]
    assert [row.split()[0] for row in rows] == [cause.verdict for cause in everything().causes]
    assert any(row.startswith("INCOMPLETE  start its pod  n6 ") for row in rows)


def test_no_name_drives_the_terminal() -> None:
    text = table(hostile())
    assert '<script>alert("1")</script>' in text
    assert all(char.isprintable() or char == "\n" for char in text)
