"""Firmware and network ports are compared over the fleet: a minority is named with what the others
have.
"""

from __future__ import annotations

import dataclasses

import pytest

from gpuworker.accept import fabric
from gpuworker.judgement.differences import port_differences, version_drift
from gpuworker.judgement.kinds import CONFIGURE, TICKET
from gpuworker.judgement.report import FAIL, WARN, Report
from gpuworker.runtime.gpu_inventory import Gpu
from tests.helpers.fleet_reports import merged, node_report, source

PORT = fabric.Port("mlx5_0/1", True, rate_gbps=400.0, kind="MT4129", firmware="28.39")


def node(name: str, port: fabric.Port | None = PORT, **gpu: str) -> dict:
    report = node_report(name)
    versions = {"vbios": "96.00", "inforom": "G520", "driver": "570.86"} | gpu
    gpus = [dataclasses.asdict(Gpu(f"cuda:{index}", **versions)) for index in range(2)]
    report["checks"][0]["facts"] = {"gpus": gpus, **fabric.facts([port] if port else [])}
    report["facts"]["driver"] = versions["driver"]
    return report


def reports(*nodes: dict) -> list[Report]:
    return [source(each).report for each in nodes]


@pytest.mark.parametrize(
    ("odd", "name", "value", "usual"),
    [
        (node("n3", vbios="95.00"), "VBIOS", "95.00", "96.00"),
        (node("n3", inforom="G510"), "InfoROM", "G510", "G520"),
        (node("n3", inforom=""), "InfoROM", "none", "G520"),
        (node("n3", driver="535.1"), "driver", "535.1", "570.86"),
        (
            node("n3", dataclasses.replace(PORT, firmware="20.1")),
            "network adapters",
            "MT4129 20.1",
            "MT4129 28.39",
        ),
    ],
)
def test_a_minority_is_a_warning_that_names_both_versions(
    odd: dict, name: str, value: str, usual: str
) -> None:
    findings, notes = version_drift(reports(node("n1"), node("n2"), odd))
    (finding,) = findings
    assert (finding.verdict, finding.node, finding.found_by, notes) == (WARN, "n3", "fleet", [])
    for words in (name, value, f"2 of 3 nodes with the same GPUs have {usual}"):
        assert words in finding.reason
    assert finding.act.verb == CONFIGURE


def test_equal_nodes_and_nodes_without_a_majority_have_no_finding() -> None:
    assert version_drift(reports(*(node(f"n{index}") for index in range(3)))) == ([], [])
    findings, notes = version_drift(reports(node("n1"), node("n2", vbios="95.00")))
    assert findings == [] and "VBIOS" in notes[0]


@pytest.mark.parametrize(
    ("port", "verdict", "words"),
    [
        (dataclasses.replace(PORT, up=False), FAIL, "is down"),
        (dataclasses.replace(PORT, rate_gbps=200.0), FAIL, "runs at 200 Gb/s"),
        (None, WARN, "is missing"),
    ],
)
def test_a_port_unlike_that_of_other_nodes(
    port: fabric.Port | None, verdict: str, words: str
) -> None:
    fleet = merged(node("n1"), node("n2"), node("n3", port), node("n4"))
    (finding,) = (finding for finding in fleet.findings if "network port" in finding.reason)
    assert (finding.verdict, finding.node, finding.device) == (verdict, "n3", "mlx5_0/1")
    assert words in finding.reason and "3 of 4 nodes" in finding.reason
    assert (finding.kind == "port-missing") == (port is None) and finding.act.verb == TICKET
    assert [s.device for s in fleet.suspects if s.act == TICKET] == ["mlx5_0/1"]


def test_ports_are_only_compared_where_a_majority_has_them_up() -> None:
    down, other = (
        dataclasses.replace(PORT, up=False),
        dataclasses.replace(PORT, kind="MT41692", rate_gbps=100.0),
    )
    for ports in ([PORT, down], [PORT, PORT, other], [down, down, PORT], [PORT, down, PORT, down]):
        nodes = (node(f"n{index}", port) for index, port in enumerate(ports))
        assert port_differences(reports(*nodes)) == []
