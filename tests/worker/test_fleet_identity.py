"""Identity of GPUs: none is on two nodes, none is listed twice, and every one has a name that limits can rely on."""

from __future__ import annotations

import json

import pytest

from gpuworker.fleet.expected import Expected
from gpuworker.fleet.fleet_report import Fleet
from gpuworker.fleet.merge import merge
from gpuworker.fleet.report_sources import from_text
from gpuworker.judgement.report import INCOMPLETE, PASS, WARN
from tests.helpers.fleet_reports import H100, REQUESTED, complete_report


def fleet_of(*reports: dict) -> Fleet:
    sources = [s for report in reports for s in from_text(report["node"], json.dumps(report).encode())]
    return merge(sources, Expected(len(reports), requested=REQUESTED))


def gpus_of(report: dict) -> list[dict]:
    return next(check["facts"]["gpus"] for check in report["checks"] if check["name"] == "environment")


def pair(**fields: object) -> tuple[dict, dict]:
    """Two nodes whose first GPUs have the same values in these fields."""
    found = complete_report("n1"), complete_report("n2")
    for report in found:
        gpus_of(report)[0] |= fields
    return found


@pytest.mark.parametrize("serial", ["1652922003411", " 1652922003411"])
def test_one_board_is_not_in_two_nodes(serial: str) -> None:
    first, second = pair(serial="1652922003411")
    gpus_of(second)[0]["serial"] = serial
    fleet = fleet_of(first, second)
    assert fleet.verdict == INCOMPLETE
    assert {finding.node for finding in fleet.findings} == {"n1", "n2"}


@pytest.mark.parametrize("serial", ["", "0", "0000000000000"])
def test_a_serial_of_no_digits_is_none(serial: str) -> None:
    assert fleet_of(*pair(serial=serial)).verdict == PASS


def test_gpus_of_one_board_share_its_serial() -> None:
    report = complete_report("n1")
    for gpu in gpus_of(report):
        gpu["serial"] = "1652922003411"
    assert fleet_of(report).verdict == PASS


@pytest.mark.parametrize("uuid", ["GPU-AB-CD", "gpu-ab-cd ", "\tGPU-ab-cd"])
def test_a_uuid_is_the_same_in_other_letters(uuid: str) -> None:
    first, second = pair(uuid="GPU-ab-cd")
    gpus_of(second)[0]["uuid"] = uuid
    assert fleet_of(first, second).verdict == INCOMPLETE


def test_two_gpus_have_not_one_address() -> None:
    report = complete_report("n1")
    for gpu in gpus_of(report):
        gpu["bus_id"] = "0000:1b:00.0"
    fleet = fleet_of(report)
    assert fleet.verdict == INCOMPLETE and "0000:1b:00.0" in fleet.reason


def test_every_gpu_is_listed_once() -> None:
    report = complete_report("n1")
    gpus_of(report)[1]["device"] = "cuda:0"
    fleet = fleet_of(report)
    assert fleet.verdict == INCOMPLETE and "cuda:0" in fleet.reason
    report = complete_report("n1")
    gpus_of(report)[1]["device"] = "GPU 1 of the driver"
    fleet = fleet_of(report)
    assert fleet.verdict == WARN and "cuda:1" in {finding.device for finding in fleet.findings}


def test_a_gpu_without_uuid_is_a_warning() -> None:
    report = complete_report("n1")
    gpus_of(report)[1]["uuid"] = " "
    fleet = fleet_of(report)
    assert fleet.verdict == WARN and "UUID" in fleet.reason


@pytest.mark.parametrize(("name", "verdict"), [(f"{H100} X", INCOMPLETE), ("NVIDIA A100-SXM4-80GB", INCOMPLETE)])
def test_the_name_by_which_numbers_are_judged_is_that_of_the_driver(name: str, verdict: str) -> None:
    report = complete_report("n1")
    report["facts"]["gpu_models"][1] = name
    fleet = fleet_of(report)
    words = [f.reason for f in fleet.findings if f.verdict == verdict]
    assert fleet.verdict == verdict and any(name in text and H100 in text for text in words)


def test_a_part_of_a_gpu_has_a_longer_name() -> None:
    report = complete_report("n1")
    report["facts"]["gpu_models"][1] = f"{H100} MIG 1g.10gb"
    gpus_of(report)[1]["mig"] = True
    assert not any("torch names it" in finding.reason for finding in fleet_of(report).findings)


def test_drivers_of_one_node_do_not_differ() -> None:
    report = complete_report("n1")
    for gpu, driver in zip(gpus_of(report), ("570.86.15", "450.0"), strict=True):
        gpu["driver"] = driver
    fleet = fleet_of(report)
    assert fleet.verdict == WARN and "450.0" in fleet.reason
