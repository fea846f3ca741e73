"""A job group to start from, and jobgen as a user runs it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from jobgen.cli import cli

HEADER = "name: rl\nexecution: parallel\n---\n"


@pytest.fixture
def seeds() -> Path:
    return Path(__file__).parent / "seeds"


@pytest.fixture
def jobgen():
    """Runs jobgen with arguments and text on standard input."""

    def run(*arguments: str | Path, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(cli, [str(argument) for argument in arguments], input=stdin, prog_name="jobgen")

    return run


@pytest.fixture
def task_values(jobgen):
    """The values that become of one task, given as YAML below the header."""

    def convert(task: str, *options: str) -> dict:
        result = jobgen("to-values", *options, "-", stdin=HEADER + textwrap.dedent(task))
        assert result.exit_code == 0, result.stderr
        (values,) = yaml.safe_load(result.stdout)["tasks"].values()
        return values

    return convert


@pytest.fixture
def errors(jobgen):
    """The lines of errors about a text, without `<stdin>:`; nothing may reach standard output."""

    def lines(text: str) -> list[str]:
        result = jobgen("to-values", "-", stdin=textwrap.dedent(text))
        assert (result.exit_code, result.stdout) == (1, ""), result.output
        return [line.removeprefix("<stdin>:") for line in result.stderr.splitlines()]

    return lines


@pytest.fixture
def task_error(errors):
    """The only error about one task, from its path on."""

    def message(task: str) -> str:
        (line,) = errors(HEADER + textwrap.dedent(task))
        return line.partition(': error: task "t": ')[2]

    return message
