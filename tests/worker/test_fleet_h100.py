"""Reports of two healthy H100s: the fleet is healthy by today's limits, and both computed the same bits."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gpuworker.accept.limits import Limits
from gpuworker.accept.registry import node_checks
from hack.paths import REPO
from tests.helpers.processes import environment

RESULTS = REPO / "hack/gpu/results"
REPORTS = sorted(RESULTS.glob("*-report.json"))


def test_the_fleet_has_no_finding_but_the_clock_of_its_machines():
    command = ["-m", "gpuworker.fleet.cli", "merge", str(RESULTS), "--expect-nodes=2", "--device=cuda", "--gpus=1"]
    done = subprocess.run([sys.executable, *command, "--level=quick", "--json=-"], capture_output=True, text=True,
                          env=environment(PYTHONPATH=REPO / "worker/src"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    fleet = json.loads(done.stdout)
    found = {(each["node"], each["check"]) for each in fleet["findings"]}
    assert found == {("h100-1", "environment"), ("h100-2", "environment")}
    assert fleet["verdict"] == "WARN"


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.stem)
def test_no_number_is_below_its_limits_of_today(report):
    checks, limits = node_checks(), Limits(("NVIDIA H100 80GB HBM3",))
    judged = 0
    for check in json.loads(report.read_text())["checks"]:
        for each in check["measurements"]:
            measure = checks[check["name"]].spec.measures[each["name"]]
            limit = limits.threshold(each["name"], measure, each["device"])
            for least in filter(None, (limit.fail, limit.warn)):
                judged += 1
                assert each["value"] >= least or measure.better == "lower", each
    assert judged > 15


def test_both_computed_the_same_bits():
    hashes = [
        check["hashes"]
        for report in REPORTS
        for check in json.loads(report.read_text())["checks"]
        if check["name"] == "repeatability"
    ]
    assert hashes[0] == hashes[1] and len(hashes[0]) >= 3
