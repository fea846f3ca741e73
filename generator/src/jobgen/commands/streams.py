"""Standard streams and files of the commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click


def display_name(file: str) -> str:
    return "<stdin>" if file == "-" else file


def print_error(message: str) -> None:
    click.echo(message, err=True)


def print_errors(messages: Sequence[str]) -> None:
    for message in messages:
        print_error(message)


def write(text: str) -> None:
    """Write to standard output as UTF-8 with \\n, in every locale."""
    if sys.stdout is None:
        raise click.UsageError("standard output is closed")
    click.echo(text.encode(), nl=False)


def replace(target: Path, text: str) -> None:
    """Replace a file atomically: a reader gets the old text or the new text."""
    target = target.resolve()
    if target.exists() and not target.is_file():  # such as /dev/null
        target.write_bytes(text.encode())
        return
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        scratch.write_bytes(text.encode())
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)


def identities(*files: str | None) -> frozenset[tuple[int, int]]:
    """Return device and inode of the files that exist, and of standard output."""
    found = []
    for file in (*files, 1):
        try:
            found.append(os.stat(file or ""))
        except (OSError, ValueError):  # it does not exist yet, or is not a file
            continue
    return frozenset((each.st_dev, each.st_ino) for each in found)
