"""The command `jobgen to-values`."""

from __future__ import annotations

import click

from jobgen.commands.conversion import convert_file, finish, read
from jobgen.commands.options import FILE, conversion, output
from jobgen.commands.streams import identities


@click.command("to-values")
@output
@conversion
@click.argument("file", metavar="FILE", type=FILE)
@click.pass_context
def to_values(ctx: click.Context, file: str, form: str, color: str, **options) -> None:
    """Print the values of a job group. `-` is standard input."""
    targets = {name: options.pop(name) for name in ("output", "expected", "compared")}
    source = read(file)
    result = convert_file(file, source, identities(*targets.values()), **options)
    finish(ctx, file, source, result, form, color, **targets)
