"""Votes on fingerprints, outliers of the fleet, and an earlier run."""

from __future__ import annotations

import random

import pytest

from gpuworker.accept.report import FAIL, INCOMPLETE, PASS, WARN
from gpuworker.fleet.fleet_report import Fleet
from gpuworker.fleet.outliers import Thresholds, numbers
from tests.helpers.fleet_reports import H100, measurement, merged, node_report

pytestmark = pytest.mark.usefixtures("known_measures")


def found(fleet: Fleet, by: str) -> dict[tuple[str, str], str]:
    """(node, device) -> verdict of what was found that way; each device at most once."""
    findings = [finding for finding in fleet.findings if finding.found_by == by]
    devices = {(finding.node, finding.device): finding.verdict for finding in findings}
    assert len(devices) == len(findings)
    return devices


def voting(node: str, *hashes: str, group: str = "H100") -> dict:
    report = node_report(node, tuple(100.0 for _ in hashes))
    report["checks"][2] |= {
        "hashes": {f"gemm cuda:{index}": value for index, value in enumerate(hashes)},
        "facts": {"hash_group": group},
    }
    return report


def test_the_majority_names_the_odd_device() -> None:
    fleet = merged(voting("n1", "aa", "aa"), voting("n2", "aa", "bb"), voting("n3", "aa", "aa"))
    assert found(fleet, "vote") == {("n2", "cuda:1"): FAIL}
    assert [node.verdict for node in fleet.nodes] == [PASS, FAIL, PASS]
    assert fleet.reason == "n2 cuda:1 repeatability: fingerprint gemm differs from 5 of 6 devices (H100)"


def test_several_odd_devices_of_a_large_fleet() -> None:
    odd = {(3, 1): "bb", (40, 0): "cc", (63, 7): "bb"}
    fleet = merged(*(voting(f"n{n}", *(odd.get((n, g), "aa") for g in range(8))) for n in range(64)))
    assert found(fleet, "vote") == {(f"n{n}", f"cuda:{g}"): FAIL for n, g in odd}


@pytest.mark.parametrize("hashes", [("aa", "bb"), ("aa", "aa", "bb", "bb"), ("aa", "bb", "cc")])
def test_without_a_majority_all_are_doubtful(hashes: tuple[str, ...]) -> None:
    fleet = merged(*(voting(f"n{index}", value) for index, value in enumerate(hashes)))
    assert found(fleet, "vote") == {(f"n{index}", "cuda:0"): WARN for index in range(len(hashes))}


def test_fingerprints_of_different_software_are_not_compared() -> None:
    fleet = merged(voting("n1", "aa", "aa"), voting("n2", "bb", "bb", group="H100, other driver"))
    assert (fleet.verdict, [vote.voters for vote in fleet.votes]) == (PASS, [2, 2])


def test_a_lone_fingerprint_is_said() -> None:
    assert merged(voting("n1", "aa")).notes == [
        "1 fingerprints have one device in their group: nothing to compare them with"
    ]


def fleet_of(*speeds: float, gpus: int = 8, **options: object) -> Fleet:
    """Nodes n0, n1, … with these speeds, `gpus` a node."""
    rows = [speeds[start : start + gpus] for start in range(0, len(speeds), gpus)]
    return merged(*(node_report(f"n{index}", tuple(row)) for index, row in enumerate(rows)), **options)


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
        assert fleet_of(*(noise.gauss(100, 1.5) for _ in range((5, 16, 128, 1024)[seed % 4]))).verdict == PASS


def test_a_tight_fleet_does_not_flag_noise() -> None:
    """96 is far out by robust z, and yet only 4 % behind."""
    fleet = fleet_of(*[100.0, 100.01, 99.99, 100.02] * 4, 96.0)
    assert fleet.distributions[0].mad < 0.02
    assert fleet.verdict == PASS


def test_a_wide_fleet_is_not_flooded() -> None:
    """13 % behind is nothing special where speeds spread so far."""
    assert fleet_of(*(float(speed) for speed in range(85, 116))).verdict == PASS


def test_more_than_the_median_is_no_fault() -> None:
    assert fleet_of(*[100.0] * 15, 140.0).verdict == PASS


@pytest.mark.parametrize(("speed", "verdict"), [(96.0, PASS), (91.0, PASS), (85.0, WARN), (70.0, FAIL)])
def test_a_small_fleet_goes_by_the_percentages_doubled(speed: float, verdict: str) -> None:
    fleet = fleet_of(100.0, 100.0, 100.0, speed)
    assert found(fleet, "fleet") == ({} if verdict == PASS else {("n0", "cuda:3"): verdict})


def test_thresholds_are_settable() -> None:
    speeds = [100.0, 101.0, 99.0, 100.0, 100.5, 99.5, 96.0]
    assert fleet_of(*speeds).verdict == PASS
    assert fleet_of(*speeds, thresholds=Thresholds(fleet_warn=2, fleet_fail=3)).verdict == FAIL


def test_less_is_better_for_some() -> None:
    reports = [node_report(f"n{index}") for index in range(6)]
    for index, report in enumerate(reports):
        report["checks"][1]["measurements"] = [measurement(2.0 if index == 4 else 1.0, "", "late", "s")]
    assert found(merged(*reports), "fleet") == {("n4", ""): FAIL}


def test_a_link_is_compared_with_the_same_link_of_other_nodes() -> None:
    """One pair goes through the host on every node, as the machine is built; on one node another pair does, too."""
    reports = [node_report(f"n{index}") for index in range(6)]
    for index, report in enumerate(reports):
        speeds = {"cuda:0→cuda:1": 300.0, "cuda:1→cuda:2": 300.0, "cuda:0→cuda:2": 25.0}
        if index == 4:
            speeds["cuda:1→cuda:2"] = 25.0
        report["checks"][1]["measurements"] = [measurement(value, pair, "link") for pair, value in speeds.items()]
    assert found(merged(*reports), "fleet") == {("n4", "cuda:1→cuda:2"): FAIL}


def test_what_no_limit_is_for_is_shown_and_not_judged() -> None:
    reports = [node_report(f"n{index}") for index in range(6)]
    for index, report in enumerate(reports):
        report["checks"][1]["measurements"] = [measurement(90.0 if index == 4 else 50.0, "", "heat", "°C")]
    fleet = merged(*reports)
    assert (fleet.verdict, len(fleet.distributions[0].points)) == (PASS, 6)


def test_models_are_compared_apart() -> None:
    reports = [node_report(f"a{index}", (700.0, 700.0)) for index in range(4)]
    for index in range(4):
        reports.append(node_report(f"b{index}", (300.0, 300.0), facts={"gpu_models": ["NVIDIA A100"] * 2}))
    fleet = merged(*reports)
    assert (fleet.verdict, [d.median for d in fleet.distributions]) == (PASS, [700.0, 300.0])


def test_a_node_with_another_driver_than_its_kind_is_named() -> None:
    """Nodes with other GPUs may have another driver."""
    reports = [node_report(f"a{index}") for index in range(3)]
    reports += [node_report(f"b{index}", facts={"gpu_models": ["A100"] * 2, "driver": "535"}) for index in range(3)]
    assert merged(*reports).verdict == PASS
    reports[1]["facts"]["driver"] = "565.1"
    fleet = merged(*reports)
    assert (fleet.verdict, fleet.nodes[1].verdict) == (WARN, WARN)
    assert fleet.reason == "a1: driver is 565.1; 2 of 3 nodes of this kind have 570.86"


def test_software_without_a_majority_is_noted() -> None:
    two = [node_report("n1"), node_report("n2", facts={"gpu_models": [H100] * 2, "driver": "1", "torch": "2.9"})]
    fleet = merged(*two)
    assert (fleet.verdict, fleet.notes) == (PASS, ["nodes of one kind differ in driver: 570.86 on 1, 1 on 1"])


def test_speeds_of_a_rehearsal_are_not_compared() -> None:
    reports = [
        node_report(f"n{index}", (speed,), device="cpu") for index, speed in enumerate([100, 100, 100, 100, 100, 20])
    ]
    assert merged(*reports).verdict == PASS


def test_a_drop_since_an_earlier_run_is_found() -> None:
    before = numbers(fleet_of(100.0, 100.0, 100.0, 100.0).distributions)
    fleet = fleet_of(100.0, 96.0, 93.0, 85.0, baseline=before)
    assert found(fleet, "baseline") == {("n0", "cuda:2"): WARN, ("n0", "cuda:3"): FAIL}
    assert "baseline: 4 of 4 judged numbers have a counterpart there" in fleet.notes


def test_a_baseline_that_fits_nothing_is_incomplete() -> None:
    fleet = fleet_of(100.0, baseline={("other", "cuda:0", "compute", "gemm"): 100.0})
    assert (fleet.verdict, fleet.reason) == (INCOMPLETE, "nothing of the baseline fits: other nodes, devices or checks")
