"""The command `jobgen from`."""

from __future__ import annotations

import click

from jobgen.commands.conversion import print_diagnostics, read
from jobgen.commands.options import FILE
from jobgen.commands.streams import write
from jobgen.manifests.convert import to_values


@click.command("from")
@click.argument("file", metavar="FILE", type=FILE)
@click.pass_context
def from_(ctx: click.Context, file: str) -> None:
    """Print values of ddp-run or job-group for a manifest of another launcher.

    It reads a Job, StatefulSet, PyTorchJob, TrainJob or JobSet.
    """
    source = read(file)
    result = to_values(source)
    if result.diagnostics:
        print_diagnostics([(file, source, result)], "auto")
    if result.text is None:
        ctx.exit(1)
    write(result.text)
