"""The command `jobgen volume`."""

from __future__ import annotations

import click

from jobgen.commands.conversion import print_diagnostics, read
from jobgen.commands.options import FILE
from jobgen.commands.streams import write
from jobgen.volume_claim import to_claims


@click.command()
@click.argument("file", metavar="FILE", type=FILE)
@click.pass_context
def volume(ctx: click.Context, file: str) -> None:
    """Print the PersistentVolumeClaim of a SkyPilot volume file. `-` is standard input."""
    source = read(file)
    result = to_claims(source)
    if result.diagnostics:
        print_diagnostics([(file, source, result)], "auto")
    if result.text is None:
        ctx.exit(1)
    write(result.text)
