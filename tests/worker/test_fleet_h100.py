"""Reports of two healthy H100s: the fleet is healthy by today's limits."""

from __future__ import annotations

import json
import subprocess
import sys

from hack.paths import REPO
from tests.helpers.processes import environment

RESULTS = REPO / "hack/gpu/results"


def test_the_fleet_has_no_finding_but_the_clock_of_its_machines():
    command = [
        "-m",
        "gpuworker.fleet.cli",
        "merge",
        str(RESULTS),
        "--expect-nodes=2",
        "--device=cuda",
        "--gpus=1",
    ]
    done = subprocess.run([sys.executable, *command, "--level=quick", "--json=-"], capture_output=True, text=True,
                          env=environment(PYTHONPATH=REPO / "worker/src"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    fleet = json.loads(done.stdout)
    found = {(each["node"], each["check"]) for each in fleet["findings"]}
    assert found == {("h100-1", "environment"), ("h100-2", "environment")}
    assert fleet["verdict"] == "WARN"
