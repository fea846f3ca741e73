"""The command jobgen.

Exit codes: 0 done; 1 invalid input, or a difference with --check; 2 usage, or an unusable file; 3 a
bug.
"""

import gc
import os
import sys
from pathlib import Path

import click

from jobgen import __version__, api, names, output, variables
from jobgen.options import Options
from jobgen.yaml_loader import MAX_BYTES


class _Main(click.Group):
    """An unexpected exception becomes a message and an exit code."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, BrokenPipeError):
            raise
        except OSError as error:
            click.echo(f"error: {error.filename or 'output'}: {error.strerror}", err=True)
            ctx.exit(2)
        except Exception as error:
            import traceback

            # The exception's text may contain parts of the input.
            frames = traceback.extract_tb(error.__traceback__)
            where = ", ".join(f"{Path(each.filename).name}:{each.lineno}" for each in frames[-5:])
            message = f"internal error: {type(error).__name__} at {where}; please report it"
            click.echo(message, err=True)
            ctx.exit(3)


def _name(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse what cannot be the name of a group."""
    if value is not None and (error := names.label_error(value)):
        raise click.BadParameter(error)
    return value


def _options(*options):
    def add(command):
        for option in reversed(options):
            command = option(command)
        return command

    return add


_FILE = click.Path()  # completes file names
_ALLOW = click.option("--allow", metavar="WHAT", multiple=True,
                      help="Accept a variable, file or path that looks like a credential "
                           "(repeatable).")  # fmt: skip
_VARIABLES = {"metavar": "NAME[=VALUE]", "multiple": True, "callback": variables.pairs}
# Each has the name of a field of Options.
_conversion = _options(
    click.option("-n", "--name", callback=_name, help="Use NAME as the name of the group."),
    click.option("--env", **_VARIABLES,
                 help="Set a variable in every task, from the environment without a value "
                      "(repeatable)."),
    click.option("--secret", "secrets", **_VARIABLES,
                 help="Take a variable of every task from the Secret; the value is not used "
                      "(repeatable)."),
    click.option("--launcher", type=click.Choice(["ddp-launch", "torchrun"]),
                 help="What `torchrun` is in every task, and in place of each task's field "
                      "(default: the chart's)."),
    click.option("--folder", type=click.Path(exists=True, file_okay=False),
                 help="Base of local paths (default: the group file's folder)."),
    click.option("--allow-outside", is_flag=True,
                 help="Also embed files from outside that folder."),
    _ALLOW,
)  # fmt: skip
_quiet = click.option("-q", "--quiet", is_flag=True, help="Print no notes.")
_output = _options(
    click.option("-o", "--output", "target", metavar="OUT", type=_FILE,
                 help="Write the values to OUT."),
    click.option("--check", metavar="FILE", type=_FILE,
                 help="Write nothing; exit 1 if FILE differs from the values."),
)  # fmt: skip
_file = click.argument("file", metavar="FILE", type=_FILE)


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Convert a job group (SkyPilot YAML) to values of the Helm chart job-group.

    \b
    jobgen validate group.yaml
    jobgen to-values group.yaml | helm install NAME charts/job-group -f -
    """


@cli.command()
@_conversion
@_quiet
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=_FILE)
def validate(files: tuple[str, ...], quiet: bool, **options) -> None:
    """Check job groups and list all errors, warnings and notes. `-` is standard input."""
    found = [(file, _convert(file, **options)) for file in files]
    lines = [(file, each) for file, result in found for each in result.diagnostics]
    output.show(lines, quiet)
    sys.exit(any(result.text is None for _, result in found))


@cli.command("to-values")
@_output
@_conversion
@_quiet
@_file
def to_values(file: str, target: str | None, check: str | None, quiet: bool, **options) -> None:
    """Print the values of a job group. `-` is standard input."""
    _finish(file, _convert(file, target, **options), target, check, quiet)


@cli.command("from")
@_output
@_quiet
@click.option("-n", "--name", callback=_name, help="Use NAME in place of the object's name.")
@click.option("--command", metavar="WORD", multiple=True,
              help="A word of the command of containers that have none (repeatable).")  # fmt: skip
@_ALLOW
@_file
def from_(file: str, name: str | None, allow: tuple, command: tuple, **targets) -> None:
    """Print values of job-group for a manifest of another launcher.

    It reads a Job, StatefulSet, PyTorchJob, TrainJob or JobSet.
    """
    from jobgen.manifests.convert import to_values

    _finish(file, to_values(_read(file), name, frozenset(allow), command), **targets)


@cli.command()
def schema() -> None:
    """Print the JSON Schema of each document of a group file, for editors."""
    import json

    from jobgen.schema import read

    output.write(json.dumps(read(), indent=2, ensure_ascii=False) + "\n")


def _read(file: str) -> bytes:
    """Read at most one byte more than jobgen accepts."""
    if file != "-":
        with open(file, "rb") as stream:
            return stream.read(MAX_BYTES + 1)
    if sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError(
            "standard input is closed or a terminal; name a file, or pipe one in"
        )
    return sys.stdin.buffer.read(MAX_BYTES + 1)


def _convert(file: str, target: str | None = None, **options) -> api.Result:
    if both := options["env"].keys() & options["secrets"].keys():
        raise click.UsageError(f"{min(both)} is in --env and in --secret; keep one")
    if file != "-" and not options["folder"]:
        options["folder"] = os.path.dirname(file) or "."
    output_file = os.stat(target) if target and os.path.exists(target) else os.fstat(1)
    options["allow"] = frozenset(options["allow"])
    return api.to_values(_read(file), Options(**options, output=output_file))


def _finish(
    file: str, result: api.Result, target: str | None, check: str | None, quiet: bool
) -> None:
    """Print the diagnostics, and write the values or compare them."""
    if target and check:
        raise click.UsageError("-o and --check exclude each other")
    if target and file != "-" and os.path.isfile(target) and os.path.samefile(target, file):
        raise click.UsageError(f"-o {target} would replace its own source")
    output.show([(file, each) for each in result.diagnostics], quiet)
    if result.text is None:
        sys.exit(1)
    if check is None:
        output.write(result.text, target)
    elif Path(check).read_bytes() != result.text.encode():
        message = (
            f"error: {check} is out of date for {output.shown(file)}; write it again with "
            f"-o {check}"
        )
        click.echo(message, err=True)
        sys.exit(1)


def main() -> None:
    """Entry point of the console script."""
    gc.disable()  # a run is short, and nearly all that it makes is needed until its end
    cli(prog_name="jobgen")
