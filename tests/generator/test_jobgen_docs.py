"""Each command of docs/jobgen.md is run, where it needs no cluster; `helm template` stands for `helm install`."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from jobgen.api import to_values
from jobgen.cli import cli
from jobgen.reporter import format_json
from tests.helpers.rendering import HELMS

REPO = Path(__file__).parents[2]
PAGE = (REPO / "docs/jobgen.md").read_text()
BLOCKS = {language: re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) for language in ("sh", "yaml", "json")}
# What needs a cluster or changes the machine.
NOT_RUN = ("pip install", "kubectl")
COMMANDS = [line for block in BLOCKS["sh"] for line in block.splitlines() if not line.startswith(NOT_RUN)]


@pytest.fixture
def shell(tmp_path):
    """A folder that looks like the repository, and a bash in which jobgen is a command."""
    for name in ("values-examples", "charts"):
        (tmp_path / name).symlink_to(REPO / name)
    program = f'#!/bin/sh\nPYTHONPATH={REPO / "generator/src"} exec {sys.executable} -m jobgen "$@"\n'
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/jobgen").write_text(program)
    (tmp_path / "bin/jobgen").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}

    def run(script: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["bash", "-ec", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )

    return run


def test_commands_in_order(shell):
    assert len(COMMANDS) >= 8 and HELMS
    done = shell("\n".join(COMMANDS).replace("helm install", "helm template"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("kind: JobSet") == 2


def test_schema_for_editors(shell):
    done = shell("jobgen schema document")
    assert json.loads(done.stdout)["title"] == "Document of a job group"
    assert json.loads(BLOCKS["json"][0])


@pytest.mark.parametrize("kind", ["bash", "zsh", "fish"])
def test_completion(shell, kind):
    done = shell(f"_JOBGEN_COMPLETE={kind}_source jobgen")
    assert done.returncode == 0 and "jobgen" in done.stdout
    words = {"bash": "COMP_WORDS='jobgen to-v' COMP_CWORD=1", "zsh": "COMP_WORDS='jobgen to-v' COMP_CWORD=1"}
    if kind in words:
        assert "to-values" in shell(f"{words[kind]} _JOBGEN_COMPLETE={kind}_complete jobgen").stdout


def test_example_group():
    (example,) = BLOCKS["yaml"]
    result = to_values(example.encode())
    assert result.diagnostics == [] and list(yaml.safe_load(result.text)["tasks"]) == ["trainer", "buffer"]


def test_every_option_is_described():
    for command in cli.commands.values():
        for option in command.params:
            if option.name not in ("file", "files", "name"):
                assert any(f"{spelling}" in PAGE for spelling in option.opts), option.opts


def test_fields_of_json_are_described():
    (diagnostic,) = json.loads(format_json([("group.yaml", to_values(b"x"))]))
    described = (REPO / "docs/jobgen-errors.md").read_text().partition("\n## ")[0]
    assert all(f"`{field}`" in described for field in diagnostic)
