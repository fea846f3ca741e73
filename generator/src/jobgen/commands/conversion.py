"""Conversion of one file as the command line asks for it, and the print of its diagnostics."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from jobgen import api
from jobgen.api import Options, Result
from jobgen.commands.streams import display_name, print_error, print_errors, replace, write
from jobgen.diagnostics import NOTE
from jobgen.yaml_loader import MAX_BYTES


def read(file: str) -> bytes:
    """Read at most one byte more than jobgen accepts."""
    if file != "-":
        with open(file, "rb") as stream:
            return stream.read(MAX_BYTES + 1)
    if sys.stdin is None:
        raise click.UsageError("standard input is closed")
    if sys.stdin.isatty():
        raise click.UsageError("standard input is a terminal; name a file, or pipe one in")
    return sys.stdin.buffer.read(MAX_BYTES + 1)


def convert_file(
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
    if both := options["env"].keys() & (options["secret"].keys() | options["secret_file"].keys()):
        raise click.UsageError(f"{min(both)} is in --env and in a secret; keep one")
    beside = None if file == "-" else os.path.dirname(file) or "."
    options["secrets"] = {**options.pop("secret_file"), **options.pop("secret")}
    result = api.to_values(
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
    return without_notes(result) if quiet else result


def without_notes(result: Result) -> Result:
    return dataclasses.replace(result, diagnostics=[each for each in result.diagnostics if each.severity != NOTE])


def print_diagnostics(found: list[tuple[str, bytes, Result]], color: str, unreadable: Sequence[str] = ()) -> None:
    """Print the diagnostics of each (file, source, result) to standard error, and their count."""
    from jobgen import reporter

    terminal = color == "always" or (color == "auto" and sys.stderr.isatty())
    coloured = color == "always" or not os.environ.get("NO_COLOR")
    for file, source, result in found:
        name = display_name(file)
        lines = reporter.format_with_source(name, result, source, coloured) if terminal else None
        for line in lines or reporter.format_plain(name, result):
            click.echo(line, err=True, color=True)
    print_errors(unreadable)
    if count := reporter.format_count([result for _, _, result in found], len(found) + len(unreadable)):
        print_error(count)


def finish(
    ctx: click.Context,
    file: str,
    source: bytes,
    result: Result,
    form: str,
    color: str,
    output: str | None,
    expected: str | None,
    compared: str | None,
) -> None:
    """Print the diagnostics, and write the values or compare them, as the options of `output` ask for it."""
    if sum(each is not None for each in (output, expected, compared)) > 1:
        raise click.UsageError("-o, --check and --diff exclude each other")
    if output and os.path.isfile(output) and file != "-" and os.path.samefile(output, file):
        raise click.UsageError(f"-o {output} would replace its own source")
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
    if existing == "-":
        raise click.UsageError("--check and --diff compare with a file, not with standard input")
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
