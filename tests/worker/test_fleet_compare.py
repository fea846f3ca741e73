"""Fingerprint groups and outliers of the fleet."""

from __future__ import annotations

import random

import pytest

from gpuworker.judgement.fleet_report import Fleet
from gpuworker.judgement.report import FAIL, INCOMPLETE, PASS, WARN
from tests.helpers.fleet_reports import measurement, merged, node_report


def found(fleet: Fleet, by: str) -> dict[tuple[str, str], str]:
    """(node, device) -> verdict of what was found that way; each device at most once."""
    findings = [finding for finding in fleet.findings if finding.found_by == by]
    devices = {(finding.node, finding.device): finding.verdict for finding in findings}
    assert len(devices) == len(findings)
    return devices


def with_hashes(node: str, *hashes: str, group: str = "H100") -> dict:
    report = node_report(node, tuple(100.0 for _ in hashes))
    report["checks"][2] |= {
        "hashes": {f"gemm cuda:{index}": value for index, value in enumerate(hashes)},
        "facts": {"hash_group": {f"cuda:{index}": group for index in range(len(hashes))}},
    }
    return report


@pytest.mark.parametrize("hashes", [("aa", "bb"), ("aa", "aa", "bb", "bb"), ("aa", "bb", "cc")])
def test_without_a_majority_every_device_is_incomplete(hashes: tuple[str, ...]) -> None:
    fleet = merged(*(with_hashes(f"n{index}", value) for index, value in enumerate(hashes)))
    assert found(fleet, "fingerprint") == {
        (f"n{index}", "cuda:0"): INCOMPLETE for index in range(len(hashes))
    }
    assert fleet.verdict == INCOMPLETE


def test_a_group_of_one_device_is_noted() -> None:
    (note,) = merged(with_hashes("n1", "aa")).notes
    assert note.startswith("1 fingerprints ")


def fleet_of(*speeds: float, gpus: int = 8) -> Fleet:
    """Nodes n0, n1, … with these speeds, `gpus` a node."""
    rows = [speeds[start : start + gpus] for start in range(0, len(speeds), gpus)]
    return merged(*(node_report(f"n{index}", tuple(row)) for index, row in enumerate(rows)))


def test_a_slow_device_is_found_among_many() -> None:
    noise = random.Random(0)
    speeds = [noise.gauss(100, 1) for _ in range(512)]
    speeds[77], speeds[300] = 93.0, 80.0
    fleet = fleet_of(*speeds)
    assert found(fleet, "fleet") == {("n9", "cuda:5"): WARN, ("n37", "cuda:4"): FAIL}
    assert "gemm 80 TFLOP/s is 20" in fleet.reason and "robust z" in fleet.reason
    (distribution,) = fleet.distributions
    assert sum(point.verdict != PASS for point in distribution.points) == 2


def test_healthy_fleets_raise_no_alarm() -> None:
    """From 5 to 1024 GPUs whose speeds differ by 1.5 % (one sigma), 24 times."""
    for seed in range(24):
        noise = random.Random(seed)
        assert (
            fleet_of(*(noise.gauss(100, 1.5) for _ in range((5, 16, 128, 1024)[seed % 4]))).verdict
            == PASS
        )


def test_a_wide_fleet_is_not_flooded() -> None:
    """13 % below the median is common with such a spread."""
    assert fleet_of(*(float(speed) for speed in range(85, 116))).verdict == PASS


@pytest.mark.parametrize(
    ("speed", "verdict"), [(96.0, PASS), (91.0, PASS), (85.0, WARN), (70.0, FAIL)]
)
def test_a_small_fleet_doubles_the_percentages(speed: float, verdict: str) -> None:
    fleet = fleet_of(100.0, 100.0, 100.0, speed)
    assert found(fleet, "fleet") == ({} if verdict == PASS else {("n0", "cuda:3"): verdict})


def test_a_link_is_compared_with_the_same_link_of_other_nodes() -> None:
    """One pair goes through the host on every node by design. On one node another pair does so,
    too.
    """
    reports = [node_report(f"n{index}") for index in range(6)]
    for index, report in enumerate(reports):
        speeds = {"cuda:0→cuda:1": 300.0, "cuda:1→cuda:2": 300.0, "cuda:0→cuda:2": 25.0}
        if index == 4:
            speeds["cuda:1→cuda:2"] = 25.0
        report["checks"][1]["measurements"] = [
            measurement(value, pair, "link") for pair, value in speeds.items()
        ]
    assert found(merged(*reports), "fleet") == {("n4", "cuda:1→cuda:2"): FAIL}


def test_speeds_of_a_rehearsal_are_not_compared() -> None:
    reports = [
        node_report(f"n{index}", (speed,), device="cpu")
        for index, speed in enumerate([100, 100, 100, 100, 100, 20])
    ]
    assert merged(*reports).verdict == PASS


@pytest.mark.parametrize(("own", "verdict"), [(85.0, PASS), (70.0, WARN), (20.0, FAIL)])
def test_a_number_without_a_limit_is_compared_more_loosely(own: float, verdict: str) -> None:
    disks = [node_report(f"n{index}") for index in range(6)]
    for index, report in enumerate(disks):
        value = 100.0 if index else own
        report["checks"][0]["measurements"] += [
            measurement(value, "", "disk", "MB/s", judged=False)
        ]
    fleet = merged(*disks)
    assert (fleet.verdict, found(fleet, "fleet")) == (
        verdict,
        {} if verdict == PASS else {("n0", ""): verdict},
    )
