"""The command jobgen.

Exit codes: 0 done; 1 invalid input, or a difference with --check or --diff; 2 usage, or an unusable file; 3 a bug.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from jobgen import __version__, names, variables
from jobgen.api import Options, Result
from jobgen.api import to_values as convert
from jobgen.diagnostics import NOTE
from jobgen.yaml_loader import MAX_BYTES


class _Commands(click.Group):
    """Command group that turns an unexpected exception into a message and an exit code."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise
            if isinstance(error, OSError):
                _print_error(f"error: {error.filename or 'output'}: {error.strerror}")
                ctx.exit(2)
            import traceback

            if ctx.params["debug"]:
                _print_error(traceback.format_exc())
            # The exception's text may contain parts of the input.
            at = traceback.extract_tb(error.__traceback__)[-1]
            kind = f"{type(error).__name__} at {Path(at.filename).name}:{at.lineno}"
            _print_error(f"internal error: {kind}; please report it, with the output of `jobgen --debug …`")
            ctx.exit(3)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an internal error.")
@click.version_option(__version__)
def cli(debug: bool) -> None:
    """Convert a job group (SkyPilot YAML) to values of the Helm chart job-group.

    \b
    jobgen validate group.yaml
    jobgen to-values group.yaml | helm install NAME charts/job-group -f -
    """


def _group_name(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    error = names.label_error(value) if value is not None else None
    if error:
        raise click.BadParameter(error)
    return value


def _secret_name(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not (len(value) <= 253 and re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", value)):
        raise click.BadParameter('must be the name of a Secret: a-z, 0-9, "-" and "."')
    return value


_FILE = click.Path()  # completes file names
_SHARED = [
    click.option("-n", "--name", "group_name", callback=_group_name, help="Use NAME as the name of the group."),
    click.option(
        "--env",
        metavar="NAME[=VALUE]",
        multiple=True,
        callback=variables.pairs,
        help="Set a variable in every task, from the environment without a value (repeatable).",
    ),
    click.option("--env-file", type=_FILE, callback=variables.file, help="Set the variables of a dotenv file."),
    click.option(
        "--secret",
        metavar="NAME[=VALUE]",
        multiple=True,
        callback=variables.pairs,
        help="Take a variable of every task from the Secret; the value is not used (repeatable).",
    ),
    click.option("--secret-file", type=_FILE, callback=variables.file, help="Secrets of a dotenv file."),
    click.option(
        "--secret-name",
        metavar="NAME",
        callback=_secret_name,
        help="Name of the Secret that holds the secrets (default: GROUP-secrets).",
    ),
    click.option(
        "--lenient", is_flag=True, help="Leave out refused fields with a warning if the task runs without them."
    ),
    click.option("--strict", is_flag=True, help="Refuse what causes a warning, is ignored or has no effect."),
    click.option("-q", "--quiet", is_flag=True, help="Print no notes."),
    click.option(
        "--folder",
        type=click.Path(exists=True, file_okay=False),
        help="Base of local paths (default: the group file's folder, and then the current one).",
    ),
    click.option("--allow-outside", is_flag=True, help="Also embed files from outside that folder."),
    click.option(
        "--allow",
        metavar="WHAT",
        multiple=True,
        help="Accept a variable, file or path that looks like a credential (repeatable).",
    ),
    click.option(
        "--format", "form", type=click.Choice(["text", "json"]), default="text", help="Format of the diagnostics."
    ),
    click.option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        help="Colours and source lines in the diagnostics.",
    ),
]


def _shared(command):
    for option in reversed(_SHARED):
        command = option(command)
    return command


@cli.command()
@_shared
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=_FILE)
@click.pass_context
def validate(ctx: click.Context, files: tuple[str, ...], form: str, color: str, **options) -> None:
    """Check job groups and list all errors, warnings and notes. `-` is standard input."""
    found, unreadable = [], []
    for file in files:
        try:
            source = _read(file)
        except OSError as error:
            unreadable.append(f"error: {file}: {error.strerror}")
        else:
            found.append((file, source, _convert(file, source, frozenset(), **options)))
    if form == "json":
        from jobgen.reporter import format_json

        _write(format_json([(_display_name(file), result) for file, _, result in found]))
        _print_errors(unreadable)
    else:
        _print_diagnostics(found, color, unreadable)
    invalid = any(result.text is None for _, _, result in found)
    ctx.exit(2 if unreadable else 1 if invalid else 0)


@cli.command("to-values")
@click.option("-o", "--output", metavar="OUT", type=_FILE, help="Write the values to OUT atomically.")
@click.option(
    "--check", "expected", metavar="FILE", type=_FILE, help="Write nothing; exit 1 if FILE differs from the values."
)
@click.option(
    "--diff",
    "compared",
    metavar="FILE",
    type=_FILE,
    help="Print the difference between FILE and the values; exit 1 if there is one.",
)
@_shared
@click.argument("file", metavar="FILE", type=_FILE)
@click.pass_context
def to_values(
    ctx: click.Context,
    file: str,
    output: str | None,
    expected: str | None,
    compared: str | None,
    form: str,
    color: str,
    **options,
) -> None:
    """Print the values of a job group. `-` is standard input."""
    if sum(each is not None for each in (output, expected, compared)) > 1:
        raise click.UsageError("-o, --check and --diff exclude each other")
    source = _read(file)
    outputs = _identities(output, expected, compared)
    result = _convert(file, source, outputs, **options)
    if form == "json":
        from jobgen.reporter import format_json

        click.echo(format_json([(_display_name(file), result)]), err=True, nl=False)
    elif result.diagnostics:
        _print_diagnostics([(file, source, result)], color)
    if result.text is None:
        ctx.exit(1)
    elif expected is not None or compared is not None:
        _compare(ctx, file, result, expected or compared or "", to_stdout=compared is not None)
    elif output and output != "-":
        _replace(Path(output), result.text)
    else:
        _write(result.text)


def _compare(ctx: click.Context, file: str, result: Result, existing: str, to_stdout: bool) -> None:
    with open(existing, "rb") as stream:
        old = stream.read().decode("utf-8", "replace")
    if old == result.text:
        return
    from jobgen.diff import diff

    difference = diff(old, result.text, existing, result.hidden)
    if to_stdout:
        _write(difference + "\n")
    else:
        _print_error(f"error: {existing} is out of date for {_display_name(file)}\n{difference}")
    ctx.exit(1)


@cli.command()
@click.argument("name", type=click.Choice(["header", "task", "document"]))
def schema(name: str) -> None:
    """Print the JSON Schema of the header, of a task, or of both (for editors)."""
    from jobgen.schema import text

    _write(text(name))


def _identities(*files: str | None) -> frozenset[tuple[int, int]]:
    """Return device and inode of the files that exist, and of standard output."""
    found = []
    for file in (*files, sys.stdout):
        try:
            found.append(os.fstat(file.fileno()) if file is sys.stdout else os.stat(file or ""))
        except (OSError, ValueError):  # it does not exist yet, or is not a file
            continue
    return frozenset((each.st_dev, each.st_ino) for each in found)


def _convert(
    file: str,
    source: bytes,
    outputs: frozenset[tuple[int, int]],
    group_name: str | None,
    folder: str | None,
    allow: tuple[str, ...],
    quiet: bool,
    **options,
) -> Result:
    if options["strict"] and options["lenient"]:
        raise click.UsageError("--strict and --lenient exclude each other")
    beside = None if file == "-" else os.path.dirname(file) or "."
    options["secrets"] = {**options.pop("secret_file"), **options.pop("secret")}
    result = convert(
        source,
        Options(
            name=group_name,
            folder=folder or beside,
            second_folder="." if beside and not folder else None,
            allow=frozenset(allow),
            left_out=outputs,
            **options,
        ),
    )
    if quiet:
        return replace(result, diagnostics=[each for each in result.diagnostics if each.severity != NOTE])
    return result


def _print_diagnostics(found: list[tuple[str, bytes, Result]], color: str, unreadable: Sequence[str] = ()) -> None:
    """Print the diagnostics of each (file, source, result) to standard error, and their count."""
    from jobgen import reporter

    terminal = color == "always" or (color == "auto" and sys.stderr.isatty())
    coloured = color == "always" or not os.environ.get("NO_COLOR")
    for file, source, result in found:
        name = _display_name(file)
        lines = reporter.format_with_source(name, result, source, coloured) if terminal else None
        for line in lines or reporter.format_plain(name, result):
            click.echo(line, err=True, color=True)
    _print_errors(unreadable)
    if count := reporter.format_count([result for _, _, result in found], len(found) + len(unreadable)):
        _print_error(count)


def _read(file: str) -> bytes:
    """Read at most one byte more than jobgen accepts."""
    if file != "-":
        with open(file, "rb") as stream:
            return stream.read(MAX_BYTES + 1)
    if sys.stdin.isatty():
        raise click.UsageError("standard input is a terminal; name a file, or pipe one in")
    return sys.stdin.buffer.read(MAX_BYTES + 1)


def _display_name(file: str) -> str:
    return "<stdin>" if file == "-" else file


def _print_error(message: str) -> None:
    click.echo(message, err=True)


def _print_errors(messages: Sequence[str]) -> None:
    for message in messages:
        _print_error(message)


def _write(text: str) -> None:
    """Write to standard output as UTF-8 with \\n, in every locale."""
    click.echo(text.encode(), nl=False)


def _replace(target: Path, text: str) -> None:
    """Replace a file atomically: a reader gets the old text or the new text."""
    target = target.resolve()
    if target.exists() and not target.is_file():  # such as /dev/null
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
