"""Values that a page prints, and the files for fast networks, work with the README's command of
their chart.
"""

import re
from pathlib import Path

import pytest
import yaml

from hack.paths import REPO
from tests.charts.test_charts_fabrics import FABRICS
from tests.helpers.pages import code
from tests.helpers.rendering import CHARTS, objects, schema
from tests.repo.test_readme import README, installs, rendered

COMMANDS = {
    chart: next(line for line in installs(REPO / "README.md") if f"charts/{chart} " in line)
    for chart in CHARTS
}
(OWN,) = re.findall(r"`(--set program\.image=IMAGE [^`]+)`", README)
# A run of the README on GPUs, of a preset and of a person's own program.
ON_GPUS = (
    "--set gpusPerNode=8 --set resources.requests.cpu=32 --set resources.requests.memory=256Gi"
)
RUNS = {
    "preset": f"{COMMANDS['ddp-run']} {ON_GPUS}",
    "own program": COMMANDS["ddp-run"].replace(
        "--set program.preset=train",
        f"{OWN.replace('IMAGE', 'registry.example.com/trainer:1')} {ON_GPUS}",
    ),
}
# Resource of a pod's device -> how many, for fabrics that a device plugin gives to pods.
DEVICES = {
    "infiniband": {"rdma/hca_shared_devices_a": 1},
    "sriov": {"nvidia.com/mlnxnics": 1},
    "efa": {"vpc.amazonaws.com/efa": 32, "hugepages-2Mi": "5120Mi"},
}
SHOWN = [
    REPO / "docs" / name for name in ("ddp-run.md", "job-group.md", "gpu-accept.md", "clusters.md")
]
BLOCKS = [(page, text) for page in SHOWN for text in code(page.read_text(), "yaml")]


def chart_of(page: Path, text: str) -> str:
    """The chart of the page; on a page for all charts the first one that has all of the values."""
    if page.stem in CHARTS:
        return page.stem
    return next(
        chart for chart in CHARTS if {*yaml.safe_load(text)} <= {*schema(chart)["properties"]}
    )


def accepted(command: str) -> list[dict]:
    done = rendered(command, REPO)
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return objects(done.stdout)


def test_the_pages_show_values_of_both_charts_of_runs():
    assert {chart_of(page, text) for page, text in BLOCKS} == {"ddp-run", "job-group"}
    assert "--set program.preset=train" in COMMANDS["ddp-run"]


@pytest.mark.parametrize(
    ("page", "text"), BLOCKS, ids=[f"{page.stem}-{n}" for n, (page, _) in enumerate(BLOCKS)]
)
def test_values_of_a_page_render_with_the_command_of_the_readme(page, text, tmp_path):
    (tmp_path / "values.yaml").write_text(text)
    chart = chart_of(page, text)
    for command in RUNS.values() if chart == "ddp-run" else [COMMANDS[chart]]:
        accepted(f"{command} -f {tmp_path}/values.yaml")


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("fabric", FABRICS)
def test_a_fabric_is_one_file_more_for_the_command_of_the_readme(fabric, run):
    items = accepted(f"{RUNS[run]} -f {FABRICS[fabric]}")
    (job,) = [item for item in items if item["kind"] == "Job"]
    resources = job["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert resources["requests"].items() >= {"cpu": 32, "memory": "256Gi"}.items()
    assert DEVICES.get(fabric, {}).items() <= resources["limits"].items()
    assert not {"cpu", "memory"} & {*resources["limits"]}, "a fabric caps neither"
