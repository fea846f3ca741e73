"""One render per chart that a reviewer can read: tests/golden/render/CHART.yaml."""

from __future__ import annotations

import re

import pytest

from tests.helpers import golden
from tests.helpers.rendering import CHARTS, HELMS, REPO, template

GROUP = b"""
schemaVersion: 1
name: rl
tasks:
  buffer: {run: python3 -m http.server}
  trainer:
    accelerator: {types: [H100], count: 8}
    env: {EPOCHS: "3"}
    run: torchrun train.py
primaryTasks: [trainer]
"""
EXAMPLES = {"gpu-accept": "gpu-accept-quick", "ddp-run": "ddp-run-finetune"}


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize("chart", CHARTS)
def test_a_render_is_the_one_that_was_reviewed(chart: str, helm: str) -> None:
    """Without programs and scripts, which have files of their own, and without hashes: every change alters them."""
    values = GROUP
    if chart in EXAMPLES:
        values = (REPO / "values-examples" / EXAMPLES[chart] / "values.yaml").read_bytes()
    done = template(helm, chart, values, release="demo")
    assert done.returncode == 0, done.stderr.decode()
    parts = [part.strip("\n") for part in re.split(r"(?m)^---\n", done.stdout.decode())]
    documents = [part for part in parts if part and "/programs.yaml\n" not in part]
    text = "---\n".join(f"{document}\n" for document in documents)  # Helm 3 and 4 differ in empty lines
    text = re.sub(r"(?m)^  (\w+\.sh): \|\n(    .*\n| *\n)*", r"  \1: (see charts/job-group/files)\n", text)
    golden.check(f"render/{chart}.yaml", re.sub(r"-[0-9a-f]{8}(?![0-9a-z])", "-HASH", text))
