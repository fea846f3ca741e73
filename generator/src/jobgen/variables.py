"""Variables and secrets of the command line: NAME, NAME=VALUE and dotenv files."""

from __future__ import annotations

import os
import re

import click

from jobgen import names


def pairs(ctx: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    """Read NAME=VALUE, and NAME from the environment. No message repeats an argument: it may be a secret."""
    found = {}
    for item in value:
        name, equals, content = item.partition("=")
        if not re.fullmatch(names.ENV, name):
            raise click.BadParameter("must be NAME or NAME=VALUE in UTF-8; NAME consists of letters, digits and _")
        if not equals and parameter.name == "env":
            content = os.environ.get(name)
            if content is None:
                raise click.BadParameter(f"{name} is not set in the environment; set it, or write {name}=VALUE")
        found[name] = content
    return _checked(found)


def file(ctx: click.Context, parameter: click.Parameter, value: str | None) -> dict[str, str]:
    """Read a dotenv file."""
    if value is None:
        return {}
    from jobgen import dotenv

    try:
        with open(value, encoding="utf-8") as stream:
            return _checked(dotenv.parse(stream.read(), os.environ))
    except UnicodeDecodeError:
        raise click.BadParameter(f"{value}: not UTF-8") from None
    except ValueError as error:
        raise click.BadParameter(f"{value}: {error}") from None


def _checked(found: dict[str, str]) -> dict[str, str]:
    for name, content in found.items():
        if re.search("[\0\ud800-\udfff]", content):
            raise click.BadParameter(f"{name} contains characters that are not UTF-8 text")
    return found
