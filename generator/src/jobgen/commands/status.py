"""The command `jobgen status`."""

from __future__ import annotations

import sys
import time

import click

from jobgen.commands import observe
from jobgen.commands.streams import write

_ENDS = ("done", "failed")


@click.command()
@observe.on_cluster
@observe.FORMAT
@click.option("-w", "--watch", is_flag=True, help="Show every change until the run has ended.")
@click.option("--interval", type=click.FloatRange(0.1), default=2.0, help="Seconds between two looks (default: 2).")
@click.option("--all", "every_rank", is_flag=True, help="Show every rank of a large run.")
@click.pass_context
def status(
    ctx: click.Context,
    name: str,
    namespace: str | None,
    context: str | None,
    form: str,
    watch: bool,
    interval: float,
    every_rank: bool,
) -> None:
    """Show the ranks of a group or ddp-run release: phase, node, and what each waits for."""
    cluster = observe.connect(context, namespace)
    last = ""
    while True:
        found = observe.read_status(cluster, name)
        text = _text(found, form, every_rank)
        if text != last:
            if watch and form == "text" and sys.stdout.isatty():
                write("\x1b[H\x1b[2J")
            write(text)
            sys.stdout.flush()
            last = text
        if not watch or found.state in _ENDS:
            ctx.exit(observe.exit_code(found))
        time.sleep(interval)


def _text(found, form: str, every_rank: bool) -> str:
    from jobgen.observe import report

    if form == "json":
        return report.to_json(found)
    lines = [report.summary(found), report.table(found, every_rank)]
    if found.unreadable:
        lines.append(f"you may not read: {', '.join(found.unreadable)}")
    return "\n".join(lines) + "\n"
