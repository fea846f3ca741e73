"""Output that pages show is what the commands print; of a line that ends in … its beginning.

UPDATE_GOLDEN=1 writes the pictures.
"""

import os
import re

import pytest

from gpuworker.launch.failure_causes import CAUSES
from hack.paths import REPO
from jobgen.api import Options, to_values
from kubectl_runs import report
from kubectl_runs.judge import Status
from tests.generator.cluster_objects import cluster
from tests.helpers.pages import code
from tests.helpers.terminal_picture import picture

EXAMPLE = "values-examples/find-each-other/group.yaml"
FAULTY = """\
name: rl
execution: parallel
primary_tasks: [traner]
---
name: trainer
num_nodes: 2
resources:
  accelerators: H100:8
  use_spot: true
run: torchrun train.py
---
name: Replay_Buffer
run: python3 -m http.server 8080
"""


def validated(file: str, source: str) -> list[str]:
    return [each.text(file) for each in to_values(source.encode(), Options()).diagnostics]


def of_jobgen() -> str:
    return "\n".join(
        validated(EXAMPLE, (REPO / EXAMPLE).read_text()) + validated("group.yaml", FAULTY)
    )


def waiting() -> Status:
    """A group of which one rank finds no node."""
    tasks = {"trainer": {"numNodes": 2, "run": "train"}, "buffer": {"run": "serve"}}
    found = cluster(workload="jobset", tasks=tasks, primaryTasks=["trainer"])
    found.unscheduled(
        "trainer-1", "Unschedulable", "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
    )
    return found.judged()


def failed() -> Status:
    """A run of which the launcher has named the cause on every node."""
    found = cluster("ddp-run", workload="indexed-job", nodes=2)
    (cause,) = [each for each in CAUSES if each.key == "gpu-failed"]
    for pod in found.pods:
        reason = "rank 9 on gpu-1 (node 1): uncorrectable ECC error"
        found.ended(pod, 1, f"exit code 1 ({cause.key}): {reason}. {cause.remedy}")
    found.condition(found.owner, "Failed")
    return found.judged()


def of_kubectl_runs() -> str:
    waits, ended = waiting(), failed()
    parts = [report.summary(waits), report.ranks(waits), report.findings(waits)]
    return "".join([*parts, report.summary(ended), report.findings(ended)])


def without_age(line: str) -> str:
    """The columns of a line, without those that depend on the time."""
    return " ".join(re.sub(r" \d+[smhd]+ ", " ", line).split())


PICTURES = {
    "jobgen-errors": lambda: picture(
        "jobgen validate prints three errors, each with its line, column, code and way out",
        "jobgen validate group.yaml",
        "\n".join(validated("group.yaml", FAULTY)) + "\n3 errors in 1 file",
        {r"error\[[-a-z]+\]": "bad"},
    ),
    "runs-why": lambda: picture(
        "kubectl runs why prints the first failure of a run, its cause and what to do",
        "kubectl runs why rl",
        report.summary(failed()) + report.findings(failed()),
        {r"failed(?= \()": "bad", "gpu-failed(?=,)": "bad", "→.*": "good"},
    ),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_shows_what_its_command_prints(name):
    file, drawn = REPO / f"docs/{name}.svg", PICTURES[name]()
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(drawn)
    assert file.read_text() == drawn


@pytest.mark.parametrize(
    ("page", "printed"), [("jobgen", of_jobgen), ("kubectl-runs", of_kubectl_runs)]
)
def test_a_page_shows_what_its_commands_print(page, printed):
    text = (REPO / f"docs/{page}.md").read_text()
    shown = [line for block in code(text, "text") for line in block.splitlines() if line.strip()]
    shown = [line for line in shown if not re.match(r"\d+ (note|error)s? in ", line)]
    lines = [without_age(line) for line in printed().splitlines()]
    assert shown
    starts = [without_age(line).removesuffix("…").rstrip() for line in shown]
    assert [start for start in starts if not any(line.startswith(start) for line in lines)] == []
