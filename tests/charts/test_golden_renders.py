"""The workload of each chart as a reviewer can read it, with its pods: tests/golden/render/CHART.yaml.

UPDATE_GOLDEN=1 pytest …      write what the charts render now; review the difference before you commit it
"""

from __future__ import annotations

import os
import re

import pytest

from tests.helpers.rendering import CHARTS, HELMS, REPO, template

GROUP = b"""
schemaVersion: 1
name: rl
tasks:
  trainer: {env: {EPOCHS: "3"}, run: torchrun train.py}
"""
VALUES = {"ddp-run": b"gpusPerNode: 8", "gpu-accept": b"nodes: 2", "job-group": GROUP}
WORKLOAD = {"job-group": "jobset.yaml"}


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize("chart", CHARTS)
def test_a_render_is_the_one_that_was_reviewed(chart: str, helm: str) -> None:
    """Without hashes, which every change alters. Other objects have the tests in the chart's own folder."""
    done = template(helm, chart, VALUES[chart], release="demo")
    assert done.returncode == 0, done.stderr.decode()
    parts = [part.strip("\n") for part in re.split(r"(?m)^---\n", done.stdout.decode())]
    source = f"# Source: {chart}/templates/{WORKLOAD.get(chart, 'workload.yaml')}\n"
    (text,) = [part.removeprefix(source) for part in parts if part.startswith(source)]
    text = re.sub(r"-[0-9a-f]{8}(?![0-9a-z])|(?<=gpu-charts/pods: )\w+", "-HASH", text)
    golden = REPO / f"tests/golden/render/{chart}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(f"{text}\n")
    assert f"{text}\n" == golden.read_text(), f"review what differs from {golden}, then run with UPDATE_GOLDEN=1"
