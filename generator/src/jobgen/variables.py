"""Variables and secrets of the command line: NAME and NAME=VALUE."""

import os
import re

import click

from jobgen import names


def pairs(ctx: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    """Read NAME=VALUE, and NAME from the environment. No message repeats an argument: it may be
    a secret.
    """
    found = {}
    for item in value:
        name, equals, content = item.partition("=")
        if not re.fullmatch(names.ENV, name):
            raise click.BadParameter(
                "must be NAME or NAME=VALUE in UTF-8; NAME consists of letters, digits and _"
            )
        if not equals and parameter.name == "env":
            content = os.environ.get(name)
            if content is None:
                raise click.BadParameter(
                    f"{name} is not set in the environment; set it, or write {name}=VALUE"
                )
        if re.search("[\0\ud800-\udfff]", content):
            raise click.BadParameter(f"{name} contains characters that are not UTF-8 text")
        found[name] = content
    return found
