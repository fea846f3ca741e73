"""Options of the commands that convert a group."""

from __future__ import annotations

import re

import click

from jobgen import names, variables


def group_name(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    error = names.label_error(value) if value is not None else None
    if error:
        raise click.BadParameter(error)
    return value


def _secret_name(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not (len(value) <= 253 and re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", value)):
        raise click.BadParameter('must be the name of a Secret: a-z, 0-9, "-" and "."')
    return value


FILE = click.Path()  # completes file names
_OPTIONS = [
    click.option("-n", "--name", "group_name", callback=group_name, help="Use NAME as the name of the group."),
    click.option(
        "--env",
        metavar="NAME[=VALUE]",
        multiple=True,
        callback=variables.pairs,
        help="Set a variable in every task, from the environment without a value (repeatable).",
    ),
    click.option("--env-file", type=FILE, callback=variables.file, help="Set the variables of a dotenv file."),
    click.option(
        "--secret",
        metavar="NAME[=VALUE]",
        multiple=True,
        callback=variables.pairs,
        help="Take a variable of every task from the Secret; the value is not used (repeatable).",
    ),
    click.option("--secret-file", type=FILE, callback=variables.file, help="Secrets of a dotenv file."),
    click.option(
        "--secret-name",
        metavar="NAME",
        callback=_secret_name,
        help="Name of the Secret that holds the secrets (default: GROUP-secrets).",
    ),
    click.option(
        "--lenient", is_flag=True, help="Leave out refused fields with a warning if the task runs without them."
    ),
    click.option(
        "--strict",
        is_flag=True,
        help="Refuse what causes a warning, is ignored, has no effect or loosens the pods' security.",
    ),
    click.option(
        "--launcher",
        type=click.Choice(["ddp-launch", "torchrun"]),
        help="What `torchrun` is in every task, and in place of each task's field (default: the chart's choice).",
    ),
    click.option(
        "--skypilot-defaults",
        is_flag=True,
        help="Request the CPUs and the memory that SkyPilot requests, where a task names none.",
    ),
    click.option(
        "--folder",
        type=click.Path(exists=True, file_okay=False),
        help="Base of local paths (default: the group file's folder, and then the current one).",
    ),
    click.option("--allow-outside", is_flag=True, help="Also embed files from outside that folder."),
    click.option(
        "--allow",
        metavar="WHAT",
        multiple=True,
        help="Accept a variable, file or path that looks like a credential (repeatable).",
    ),
]


_DIAGNOSTICS = [
    click.option("-q", "--quiet", is_flag=True, help="Print no notes."),
    click.option(
        "--format", "form", type=click.Choice(["text", "json"]), default="text", help="Format of the diagnostics."
    ),
    click.option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        help="Colours and source lines in the diagnostics.",
    ),
]
_OUTPUT = [
    click.option("-o", "--output", metavar="OUT", type=FILE, help="Write the values to OUT atomically."),
    click.option(
        "--check", "expected", metavar="FILE", type=FILE, help="Write nothing; exit 1 if FILE differs from the values."
    ),
    click.option(
        "--diff",
        "compared",
        metavar="FILE",
        type=FILE,
        help="Print the difference between FILE and the values; exit 1 if there is one.",
    ),
]


def _with(options: list, command):
    for option in reversed(options):
        command = option(command)
    return command


def conversion(command):
    return _with(_OPTIONS + _DIAGNOSTICS, command)


def diagnostics(command):
    return _with(_DIAGNOSTICS, command)


def output(command):
    return _with(_OUTPUT, command)
