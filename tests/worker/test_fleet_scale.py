"""Memory, time and sizes of the collector with many nodes: FLEET_NODES=1000 pytest tests/worker/test_fleet_scale.py"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.helpers.fleet_reports import REPO

NODES = int(os.environ.get("FLEET_NODES", "16"))
FULL = "FLEET_NODES" in os.environ  # only then times and memory are judged, on a machine that is idle


def test_a_large_fleet_fits_the_collector_and_its_page() -> None:
    command = [sys.executable, "-m", "tests.scale.measure_fleet", "--nodes", str(NODES)]
    path = os.pathsep.join([str(REPO), str(REPO / "worker/src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, cwd=REPO, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, timeout=900
    )
    print(done.stdout.decode(errors="replace"))
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert (found["verdict"], found["worst"]) == ("FAIL", "gpu-0007 cuda:3")
    assert found["page_bytes"] < 1_000_000 and found["metrics_series"] < 20_000
    if FULL:
        assert found["page_s"] < 5 and found["peak_mb"] < 200
