"""The command `jobgen from`."""

from __future__ import annotations

import click

from jobgen.commands.conversion import finish, read, without_notes
from jobgen.commands.options import FILE, diagnostics, group_name, output
from jobgen.manifests.convert import to_values


@click.command("from")
@output
@diagnostics
@click.option("-n", "--name", callback=group_name, help="Use NAME in place of the object's name.")
@click.option("--allow", metavar="WHAT", multiple=True, help="Accept what looks like a credential (repeatable).")
@click.argument("file", metavar="FILE", type=FILE)
@click.pass_context
def from_(
    ctx: click.Context,
    file: str,
    name: str | None,
    allow: tuple[str, ...],
    quiet: bool,
    form: str,
    color: str,
    **targets,
) -> None:
    """Print values of ddp-run or job-group for a manifest of another launcher.

    It reads a Job, StatefulSet, PyTorchJob, TrainJob or JobSet.
    """
    source = read(file)
    result = to_values(source, name, frozenset(allow))
    finish(ctx, file, source, without_notes(result) if quiet else result, form, color, **targets)
