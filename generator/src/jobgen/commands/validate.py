"""The command `jobgen validate`."""

from __future__ import annotations

import click

from jobgen.commands.conversion import convert_file, print_diagnostics, read
from jobgen.commands.options import FILE, conversion
from jobgen.commands.streams import display_name, print_errors, write


@click.command()
@conversion
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=FILE)
@click.pass_context
def validate(ctx: click.Context, files: tuple[str, ...], form: str, color: str, **options) -> None:
    """Check job groups and list all errors, warnings and notes. `-` is standard input."""
    found, unreadable = [], []
    for file in files:
        try:
            source = read(file)
        except OSError as error:
            unreadable.append(f"error: {file}: {error.strerror}")
        else:
            found.append((file, source, convert_file(file, source, frozenset(), **options)))
    if form == "json":
        from jobgen.reporter import format_json

        write(format_json([(display_name(file), result) for file, _, result in found]))
        print_errors(unreadable)
    else:
        print_diagnostics(found, color, unreadable)
    invalid = any(result.text is None for _, _, result in found)
    ctx.exit(2 if unreadable else 1 if invalid else 0)
