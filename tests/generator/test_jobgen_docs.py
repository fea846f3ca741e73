"""Documentation of jobgen: commands that need no cluster run, with `helm template` in place of
`helm install`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

from jobgen.api import to_values
from jobgen.cli import cli
from tests.helpers.processes import ran
from tests.helpers.rendering import HELMS

REPO = Path(__file__).parents[2]
PAGE = (REPO / "docs/jobgen.md").read_text()
BLOCKS = {
    language: re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    for language in ("sh", "yaml")
}
# What needs a cluster or changes the machine.
NOT_RUN = (
    "pip install",
    "kubectl",
    "helm uninstall",
    "export",
    "printf",
    "jobgen from",
)
COMMANDS = [
    line for block in BLOCKS["sh"] for line in block.splitlines() if not line.startswith(NOT_RUN)
]


@pytest.fixture
def shell(tmp_path):
    """Return a function that runs bash in a folder like the repository, with jobgen as a command."""
    for name in ("values-examples", "charts"):
        (tmp_path / name).symlink_to(REPO / name)
    program = (
        f'#!/bin/sh\nPYTHONPATH={REPO / "generator/src"} exec {sys.executable} -m jobgen "$@"\n'
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/jobgen").write_text(program)
    (tmp_path / "bin/jobgen").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}

    def run(script: str) -> subprocess.CompletedProcess:
        return ran("bash", "-ec", script, cwd=tmp_path, env=environment, timeout=600)

    return run


def test_commands_of_the_page_run_in_order(shell):
    assert len(COMMANDS) >= 8 and HELMS
    done = shell("\n".join(COMMANDS).replace("helm install", "helm template"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("kind: JobSet") == 2


def test_example_group_of_the_page_converts():
    example = BLOCKS["yaml"][0]
    result = to_values(example.encode())
    assert [each.code for each in result.diagnostics] == ["default-differs"]
    assert list(yaml.safe_load(result.text)["tasks"]) == ["trainer", "buffer"]


def test_every_option_is_described():
    context = click.Context(cli)
    for name in cli.list_commands(context):
        for option in cli.get_command(context, name).params:
            if option.name not in ("file", "files", "name"):
                assert any(f"{spelling}" in PAGE for spelling in option.opts), option.opts
