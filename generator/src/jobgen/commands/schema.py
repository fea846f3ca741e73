"""The command `jobgen schema`."""

from __future__ import annotations

import click

from jobgen.commands.streams import write


@click.command()
@click.argument("name", type=click.Choice(["header", "task", "document"]))
def schema(name: str) -> None:
    """Print the JSON Schema of the header, of a task, or of both (for editors)."""
    import json

    from jobgen.schema import read

    write(json.dumps(read(name), indent=2, ensure_ascii=False) + "\n")
