"""What the commands print and write: diagnostics and values."""

from functools import partial
from pathlib import Path

import click

from jobgen.diagnostics import ERROR, NOTE, WARNING, Diagnostic

# click leaves them out of files and pipes.
COLOURS = {ERROR: "red", WARNING: "yellow", NOTE: "cyan"}


def shown(file: str) -> str:
    return "<stdin>" if file == "-" else file


def show(found: list[tuple[str, Diagnostic]], quiet: bool) -> None:
    """Print diagnostics of files and their count to standard error."""
    lines = [(shown(file), each) for file, each in found if not quiet or each.severity != NOTE]
    for file, each in lines:
        paint = partial(click.style, fg=COLOURS[each.severity], bold=True)
        click.echo(each.text(file, paint), err=True)
    severities = [each.severity for _, each in lines]
    counts = [
        _plural(severities.count(each), each)
        for each in (ERROR, WARNING, NOTE)
        if each in severities
    ]
    if counts:
        files = len({file for file, _ in lines})
        click.echo(f"{', '.join(counts)} in {_plural(files, 'file')}", err=True)


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def write(text: str, target: str | None = None) -> None:
    """Write UTF-8 with \\n to a file, or to standard output."""
    if target in (None, "-"):
        click.echo(text.encode(), nl=False)
    else:
        Path(target).write_bytes(text.encode())
