"""Fixtures that run jobgen on job groups as a user does."""

import textwrap
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from jobgen.cli import cli

HEADER = "name: rl\nexecution: parallel\n---\n"


def written(folder: Path, files: dict[str, str | bytes]) -> Path:
    """The folder with these files."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@pytest.fixture
def jobgen():
    """Run jobgen with arguments and text on standard input."""

    def run(*arguments, stdin=None):
        return CliRunner().invoke(
            cli, [str(argument) for argument in arguments], input=stdin, prog_name="jobgen"
        )

    return run


@pytest.fixture
def convert_file(jobgen):
    """Return the values of a group file, or None, and its diagnostics without the file's name."""

    def convert(file, *options):
        result = jobgen("to-values", *options, file)
        assert result.exit_code in (0, 1), result.stderr
        lines = [line.partition("group.yaml:")[2] for line in result.stderr.splitlines()[:-1]]
        lines = [line for line in lines if "[default-differs]: " not in line]
        return yaml.safe_load(result.stdout) if result.exit_code == 0 else None, lines

    return convert


@pytest.fixture
def values(jobgen):
    """Return the values of a group, and its diagnostics without `<stdin>:`."""

    def convert(group, *options):
        result = jobgen("to-values", *options, "-", stdin=textwrap.dedent(group))
        assert result.exit_code == 0, result.stderr
        return yaml.safe_load(result.stdout), _lines(result)

    return convert


@pytest.fixture
def task_values(values):
    """Return the values of one task, given as YAML below the header, without an empty run."""

    def convert(task, *options):
        (found,) = values(HEADER + textwrap.dedent(task), *options)[0]["tasks"].values()
        return {key: value for key, value in found.items() if (key, value) != ("run", "")}

    return convert


@pytest.fixture
def task_notes(values):
    """Return the diagnostics of one accepted task, from the severity on."""

    def notes(task, *options):
        found = values(HEADER + textwrap.dedent(task), *options)[1]
        return [line.partition(": ")[2].replace(': task "t"', "", 1) for line in found]

    return notes


@pytest.fixture
def errors(jobgen):
    """Return the errors of a text, without `<stdin>:`; nothing may reach standard output."""

    def lines(text, *options):
        result = jobgen("to-values", *options, "-", stdin=textwrap.dedent(text))
        assert (result.exit_code, result.stdout) == (1, ""), result.output
        return [line for line in _lines(result) if ": error[" in line]

    return lines


@pytest.fixture
def task_error(errors):
    """Return the only error of one task, from the severity on."""

    def message(task, *options):
        (line,) = errors(HEADER + textwrap.dedent(task), *options)
        return line.partition(": ")[2].replace(': task "t"', "", 1)

    return message


def _lines(result: Result) -> list[str]:
    """Return the diagnostics on standard error, without the line that counts them and the note that
    every group has.
    """
    lines = [line.removeprefix("<stdin>:") for line in result.stderr.splitlines()]
    assert not lines or lines.pop().endswith(" in 1 file")
    return [line for line in lines if "[default-differs]: " not in line]
