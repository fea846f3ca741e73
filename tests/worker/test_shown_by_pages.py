"""Output that docs/ddp-run.md and docs/gpu-accept.md show is what the programs print; numbers may
differ.
"""

import re
from pathlib import Path

import pytest

from hack.paths import REPO
from tests.helpers.launchers import MODULE, Run
from tests.helpers.processes import until

HANG = REPO / "hack/tryout/hang.py"


def plain(text: str) -> str:
    """The words of a text: its numbers depend on the machine, and a page breaks long lines."""
    return " ".join(re.sub(r"\d[\d.]*(e[+-]\d+)?", "N", text).split())


def shown(page: str) -> list[str]:
    """The parts of the page's output, which it leaves out where … stands."""
    text = (REPO / f"docs/{page}.md").read_text()
    blocks = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [part for block in blocks for each in block.split("…") if (part := plain(each))]


def absent(page: str, printed: str) -> list[str]:
    parts = shown(page)
    assert len(parts) > 3
    return [part for part in parts if part not in plain(printed)]


def asked(start, folder: Path) -> str:
    """What `ddp-launch stacks` prints in a pod of the run."""
    program = start(*MODULE, "stacks", TMPDIR=folder)
    program.wait()
    return program.output


@pytest.mark.slow
def test_the_page_on_ddp_run_shows_what_the_launcher_prints(start, tmp_path):
    fine = Run(start, tmp_path)
    for node in range(2):
        fine.pod(node, 2, program=("--no-python", "true"), MASTER_ADDR="127.0.0.1")
    assert fine.wait() == [0, 0], fine.output
    run = Run(start, tmp_path, torch=True)
    pods = [
        run.pod(node, 2, "--collective-timeout=30", program=(HANG,), TMPDIR=tmp_path)
        for node in range(2)
    ]
    until(lambda: "step 2" in pods[0].output, "the last step before the hang")
    stacks = until(
        lambda: found if "in next_batch" in (found := asked(start, tmp_path)) else "",
        "the rank's place",
    )
    assert run.wait() == [70, 70], run.output
    assert absent("ddp-run", fine.output + stacks + run.output) == []


def test_the_page_on_gpu_accept_shows_what_its_programs_print(start, tmp_path):
    requested = ("--device", "cpu", "--check", "compute", "--inject", "nan-product")
    node = start(
        "-m", "gpuworker.accept.accept_node", *requested, "--report-dir", tmp_path, NODE_NAME="n1"
    )
    assert node.wait() == 1, node.output
    results = REPO / "hack/gpu/results"
    merges = [
        start(
            "-m",
            "gpuworker.fleet.cli",
            "merge",
            tmp_path / "report.json",
            "--expect-nodes",
            1,
            *requested,
        ),
        start(
            "-m",
            "gpuworker.fleet.cli",
            "merge",
            results,
            "--expect-nodes",
            2,
            "--device",
            "cuda",
            "--gpus",
            1,
        ),
    ]
    assert [merge.wait() for merge in merges] == [1, 0]
    assert absent("gpu-accept", "".join(merge.output for merge in merges)) == []
