"""The command `jobgen schema`."""

from __future__ import annotations

import click

from jobgen.commands.streams import write


@click.command()
@click.argument("name", type=click.Choice(["header", "task", "document"]))
def schema(name: str) -> None:
    """Print the JSON Schema of the header, of a task, or of both (for editors)."""
    from jobgen.schema import text

    write(text(name))
