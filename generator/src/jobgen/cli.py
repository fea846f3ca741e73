"""The command jobgen. Exit codes: 0 done; 1 the input is wrong, or --check differs; 2 usage or files; 3 a bug."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path

import click

from jobgen import __version__, names
from jobgen.check import check, schema_text
from jobgen.convert import convert
from jobgen.diff import diff
from jobgen.document import UNUSABLE, load
from jobgen.emit import emit
from jobgen.group import Group, read
from jobgen.problems import Invalid, Problem


class _Commands(click.Group):
    """Turns what escapes from a command into a message and an exit code."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise
            if isinstance(error, OSError):
                _say(f"error: {error.filename or 'output'}: {error.strerror}")
                ctx.exit(2)
            if ctx.params["debug"]:
                _say(traceback.format_exc())
            # The error's own text might hold parts of the input.
            at = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(at.filename).name}:{at.lineno}"
            _say(f"internal error: {type(error).__name__} at {place}; please report it, with `jobgen --debug …`")
            ctx.exit(3)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an internal error.")
@click.version_option(__version__)
def cli(debug: bool) -> None:
    """Turns a job group (SkyPilot YAML) into values of the Helm chart job-group.

    jobgen to-values group.yaml | helm install NAME charts/job-group -f -
    """


@cli.command()
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="How to list the errors.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.pass_context
def validate(ctx: click.Context, form: str, files: tuple[str, ...]) -> None:
    """Check job groups and list every error. `-` is standard input."""
    found: list[tuple[str, Problem]] = []
    for file, source in [(file, _read(file)) for file in files]:
        try:
            _checked(source)
        except Invalid as invalid:
            found += [(_shown(file), problem) for problem in invalid.problems]
    if form == "json":
        _write(json.dumps([problem.data(file) for file, problem in found], indent=2) + "\n")
    else:
        for file, problem in found:
            _say(problem.text(file))
    ctx.exit(1 if found else 0)


def _group_name(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    problem = value is not None and names.label_problem(value)
    if problem:
        raise click.BadParameter(problem)
    return value


def _env(ctx: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    pairs = [item.partition("=") for item in value]
    for name, equals, content in pairs:
        if not equals or not re.fullmatch(names.ENV, name) or UNUSABLE.search(content):
            # What was given is not repeated: it may be a secret.
            raise click.BadParameter("must be NAME=VALUE in UTF-8; a name has letters, digits and _")
    return {name: content for name, _, content in pairs}


@cli.command("to-values")
@click.option("-o", "--output", metavar="OUT", help="Write to this file, whole or not at all.")
@click.option("--check", "expected", metavar="FILE", help="Write nothing; exit 1 if FILE is not what would be written.")
@click.option("--set-name", metavar="NAME", callback=_group_name, help="Call the group NAME.")
@click.option("--env", metavar="K=V", multiple=True, callback=_env, help="Set a variable in every task; repeatable.")
@click.argument("file", metavar="FILE")
@click.pass_context
def to_values(
    ctx: click.Context, file: str, output: str | None, expected: str | None, set_name: str | None, env: dict[str, str]
) -> None:
    """Print the values of a job group. `-` is standard input."""
    if output and expected:
        raise click.UsageError("-o and --check exclude each other: --check writes nothing")
    source = _read(file)
    try:
        group = _checked(source, set_name, env)
    except Invalid as invalid:
        for problem in invalid.problems:
            _say(problem.text(_shown(file)))
        ctx.exit(1)
    text = emit(convert(group), group, source)
    if expected:
        old = Path(expected).read_bytes().decode("utf-8", "replace")
        if old != text:
            _say(f"error: {expected} is not what jobgen writes for {_shown(file)}\n{diff(old, text, expected)}")
            ctx.exit(1)
    elif output and output != "-":
        _replace(Path(output), text)
    else:
        _write(text)


@cli.command()
@click.argument("name", type=click.Choice(["header", "task"]))
def schema(name: str) -> None:
    """Print the JSON Schema of the header or of a task."""
    _write(schema_text(name))


def _checked(source: bytes, name: str | None = None, env: Mapping[str, str] | None = None) -> Group:
    """The group in `source`. Raises Invalid."""
    group = read(load(source), name, env)
    problems = check(group)
    if problems:
        raise Invalid(problems)
    return group


def _read(file: str) -> bytes:
    if file != "-":
        return Path(file).read_bytes()
    if sys.stdin.isatty():
        raise click.UsageError("standard input is a terminal; name a file, or pipe one in")
    return sys.stdin.buffer.read()


def _shown(file: str) -> str:
    return "<stdin>" if file == "-" else file


def _say(message: str) -> None:
    click.echo(message, err=True)


def _write(text: str) -> None:
    """To standard output as UTF-8 with \\n, whatever the locale is."""
    click.echo(text.encode(), nl=False)


def _replace(target: Path, text: str) -> None:
    """Write a file such that a reader sees the old one or the new one, and never a part."""
    target = target.resolve()
    if target.exists() and not target.is_file():  # /dev/null must stay what it is
        target.write_bytes(text.encode())
        return
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        scratch.write_bytes(text.encode())
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)


def main() -> None:
    """Entry point of the console script."""
    cli(prog_name="jobgen")
