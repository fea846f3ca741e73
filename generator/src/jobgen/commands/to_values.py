"""The command `jobgen to-values`."""

from __future__ import annotations

from pathlib import Path

import click

from jobgen.api import Result
from jobgen.commands.conversion import convert_file, print_diagnostics, read
from jobgen.commands.options import FILE, conversion
from jobgen.commands.streams import display_name, identities, print_error, replace, write


@click.command("to-values")
@click.option("-o", "--output", metavar="OUT", type=FILE, help="Write the values to OUT atomically.")
@click.option(
    "--check", "expected", metavar="FILE", type=FILE, help="Write nothing; exit 1 if FILE differs from the values."
)
@click.option(
    "--diff",
    "compared",
    metavar="FILE",
    type=FILE,
    help="Print the difference between FILE and the values; exit 1 if there is one.",
)
@conversion
@click.argument("file", metavar="FILE", type=FILE)
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
    source = read(file)
    outputs = identities(output, expected, compared)
    result = convert_file(file, source, outputs, **options)
    if form == "json":
        from jobgen.reporter import format_json

        click.echo(format_json([(display_name(file), result)]), err=True, nl=False)
    elif result.diagnostics:
        print_diagnostics([(file, source, result)], color)
    if result.text is None:
        ctx.exit(1)
    elif expected is not None or compared is not None:
        _compare(ctx, file, result, expected or compared or "", to_stdout=compared is not None)
    elif output and output != "-":
        replace(Path(output), result.text)
    else:
        write(result.text)


def _compare(ctx: click.Context, file: str, result: Result, existing: str, to_stdout: bool) -> None:
    with open(existing, "rb") as stream:
        old = stream.read().decode("utf-8", "replace")
    if old == result.text:
        return
    from jobgen.diff import diff

    difference = diff(old, result.text, existing, result.hidden)
    if to_stdout:
        write(difference + "\n")
    else:
        print_error(f"error: {existing} is out of date for {display_name(file)}\n{difference}")
    ctx.exit(1)
