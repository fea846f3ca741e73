"""Identity of GPUs: none is on two nodes, none is listed twice, and every one has a name that
limits can rely on.
"""

from __future__ import annotations

import pytest

from gpuworker.judgement.report import INCOMPLETE, PASS, WARN
from gpuworker.judgement.sources import Expected
from tests.helpers.fleet_reports import H100, REQUESTED, complete_report, merged


def gpus_of(report: dict) -> list[dict]:
    return next(
        check["facts"]["gpus"] for check in report["checks"] if check["name"] == "environment"
    )


@pytest.mark.parametrize(
    ("field", "first", "second", "verdict"),
    [
        ("serial", "1652922003411", " 1652922003411", INCOMPLETE),
        ("serial", "", "", PASS),
        ("serial", "0000000000000", "0000000000000", PASS),
        ("uuid", "GPU-ab-cd", "\tgpu-AB-cd ", INCOMPLETE),
    ],
)
def test_one_gpu_is_not_in_two_nodes(field: str, first: str, second: str, verdict: str) -> None:
    reports = [complete_report("n1"), complete_report("n2")]
    for report, value in zip(reports, (first, second), strict=True):
        gpus_of(report)[0][field] = value
    fleet = merged(*reports, expected=Expected(2, requested=REQUESTED))
    assert fleet.verdict == verdict
    assert {finding.node for finding in fleet.findings} == (
        {"n1", "n2"} if verdict == INCOMPLETE else set()
    )


def test_one_pod_is_not_on_two_nodes() -> None:
    reports = [complete_report(name, pod="accept") for name in ("n1", "n2")]
    assert merged(*reports, expected=Expected(2, requested=REQUESTED)).verdict == INCOMPLETE


@pytest.mark.parametrize(
    ("fields", "verdict", "kind"),
    [
        ({"serial": ["1652922003411"] * 2}, PASS, ""),  # two GPUs of one board
        ({"bus_id": ["0000:1b:00.0"] * 2}, INCOMPLETE, "contradiction"),
        ({"device": ["cuda:0"] * 2}, INCOMPLETE, "contradiction"),
        ({"device": ["cuda:0", "GPU 1 of the driver"]}, WARN, "unlisted"),
        ({"uuid": ["GPU-1", " "]}, WARN, "unknown"),
        ({"driver": ["570.86.15", "450.0"]}, WARN, "differ"),
        ({"name": [H100, "NVIDIA A100-SXM4-80GB"]}, INCOMPLETE, "contradiction"),
        ({"name": [H100, f"{H100} MIG 1g.10gb"], "mig": [False, True]}, WARN, "differ"),
    ],
)
def test_every_gpu_of_a_node_is_one_of_its_own(fields: dict, verdict: str, kind: str) -> None:
    report = complete_report("n1")
    for field, values in fields.items():
        for gpu, value in zip(gpus_of(report), values, strict=True):
            gpu[field] = value
    fleet = merged(report, expected=Expected(1, requested=REQUESTED))
    assert fleet.verdict == verdict and (
        not kind or kind in {finding.kind for finding in fleet.findings}
    )
