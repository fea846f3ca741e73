"""`make try`, with the torch of the tests in place of a download."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from hack.paths import REPO
from tests.helpers.processes import ran

pytestmark = pytest.mark.slow


def test_each_part_shows_the_real_output_of_its_tool(tmp_path):
    """A group file is refused, the rank that hangs is named, an injected fault is found; the page
    has this machine.
    """
    environment = tmp_path / "gpu-charts/try"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    (packages,) = (environment / "lib").glob("python*/site-packages")
    (packages / "tests.pth").write_text(f"{Path(torch.__file__).parent.parent}\n")
    done = ran(
        sys.executable,
        "-m",
        "hack.tryout",
        cwd=REPO,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hack/tryout/group.yaml:11:12: error[wrong-type]" in done.stdout + done.stderr
    (fatal,) = [line for line in done.stdout.splitlines() if line.startswith("[FATAL]")]
    assert "exit_code=70 cause=collective-timeout" in fatal
    assert "rank 1 of node 0" in fatal and "hang.py:11 in next_batch" in fatal
    assert "check=memory verdict=FAIL" in done.stdout
    assert yaml.safe_load((REPO / "build/try/values.yaml").read_text())["tasks"]
    data = (
        (REPO / "build/try/page.html")
        .read_text()
        .partition('id="data">')[2]
        .partition("</script>")[0]
    )
    assert json.loads(data)["verdict"] in done.stdout
