"""The command jobgen.

Exit codes: 0 done; 1 invalid input, or a difference with --check or --diff; 2 usage, or an unusable file; 3 a bug.
"""

from __future__ import annotations

import errno
import importlib
from pathlib import Path

import click

from jobgen import __version__
from jobgen.commands.streams import print_error

_COMMANDS = ("validate", "to-values", "schema", "volume", "from")


class _Commands(click.Group):
    """Commands that are imported when they run. An unexpected exception becomes a message and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        name = cmd_name.replace("-", "_") if cmd_name != "from" else "from_"
        return getattr(importlib.import_module(f"jobgen.commands.{name}"), name)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise
            if isinstance(error, OSError):
                print_error(f"error: {error.filename or 'output'}: {error.strerror}")
                ctx.exit(2)
            import traceback

            # The exception's text may contain parts of the input.
            if ctx.params["debug"]:
                frames = "".join(traceback.format_tb(error.__traceback__))
                print_error(f"Traceback (most recent call last):\n{frames}{type(error).__name__}")
            at = traceback.extract_tb(error.__traceback__)[-1]
            kind = f"{type(error).__name__} at {Path(at.filename).name}:{at.lineno}"
            print_error(f"internal error: {kind}; please report it, with the output of `jobgen --debug …`")
            ctx.exit(3)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an internal error.")
@click.version_option(__version__)
def cli(debug: bool) -> None:
    """Convert a job group (SkyPilot YAML) to values of the Helm chart job-group.

    \b
    jobgen validate group.yaml
    jobgen to-values group.yaml | helm install NAME charts/job-group -f -
    """


def main() -> None:
    """Entry point of the console script."""
    cli(prog_name="jobgen")
