"""The command `jobgen why`."""

from __future__ import annotations

import click

from jobgen.commands import observe
from jobgen.commands.streams import write


@click.command()
@observe.on_cluster
@observe.FORMAT
@click.pass_context
def why(ctx: click.Context, name: str, namespace: str | None, context: str | None, form: str) -> None:
    """Explain what a group or ddp-run release waits for, or why it failed."""
    from jobgen.observe import report

    found = observe.read_status(observe.connect(context, namespace), name)
    if form == "json":
        write(report.to_json(found))
    else:
        write(f"{report.summary(found)}\n\n{report.findings(found) or 'nothing is wrong'}\n")
    ctx.exit(observe.exit_code(found))
