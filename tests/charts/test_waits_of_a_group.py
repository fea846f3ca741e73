"""The command that waits for a group of plain Jobs names the Jobs that decide, in the notes and in docs/operate.md."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest

from tests.helpers.rendering import GROUP, IMAGE, REPO, objects, template

TASKS = {"buffer": {"run": "false"}, "critic": {"run": "true"}, "trainer": {"run": "true", "numNodes": 2}}
VALUES = {**GROUP, "workload": "jobs", "tasks": TASKS}
SELECTOR = r"wait jobs? -l (?:'([^']+)'|(\S+)) --for=condition=Complete"


def selected(command: str, values: bytes) -> set[str]:
    """Tasks whose Jobs the command waits for."""
    selector = next(each for each in re.search(SELECTOR, command).groups() if each)
    wanted = {key: {text} for key, text in re.findall(r"(?:^|,)([\w./-]+)=([^,()]+)", selector)}
    wanted |= {key: set(texts.split(",")) for key, texts in re.findall(r"(?:^|,)([\w./-]+) in \(([^)]*)\)", selector)}
    jobs = [each for each in objects(template("helm", "job-group", values).stdout.decode()) if each["kind"] == "Job"]
    labels = [each["metadata"]["labels"] for each in jobs]
    return {each["job-group/task"] for each in labels if all(each.get(key) in texts for key, texts in wanted.items())}


@pytest.mark.parametrize("primaries", [[], ["trainer"], ["trainer", "critic"]])
def test_the_notes_wait_for_the_tasks_that_must_succeed(primaries: list[str]) -> None:
    """Helm 3 asks a cluster even for a dry run of the client."""
    values = json.dumps({**VALUES, "primaryTasks": primaries}).encode()
    command = ["helm", "install", "r", str(REPO / "charts/job-group"), "-f", "-", "--set", IMAGE, "--dry-run=client"]
    env = {**os.environ, "KUBECONFIG": os.devnull}
    done = subprocess.run(command, input=values, capture_output=True, timeout=60, env=env)
    assert done.returncode == 0, done.stderr.decode()
    notes = done.stdout.decode().split("\nNOTES:\n")[1]
    assert selected(notes, values) == set(primaries or TASKS)


def test_the_page_waits_for_the_tasks_that_must_succeed() -> None:
    values = json.dumps({**VALUES, "primaryTasks": ["trainer", "critic"]}).encode()
    (row,) = [line for line in (REPO / "docs/operate.md").read_text().splitlines() if "`workload: jobs` |" in line]
    command = row.replace("GROUP", "rl").replace("TASK,TASK", "trainer,critic")
    assert selected(command, values) == {"trainer", "critic"}
