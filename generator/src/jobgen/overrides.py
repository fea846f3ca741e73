"""Variables and secrets of the command line, applied to a task."""

from __future__ import annotations

from jobgen.options import Options


def name_of(secret: str) -> str:
    """secrets:personal.TOKEN -> TOKEN."""
    return secret.rpartition(":")[2].rpartition(".")[2]


def secret_names(secrets: object) -> set[str]:
    """Return the variables that a field secrets names."""
    found = secrets if isinstance(secrets, (dict, list)) else ()
    return {name_of(each) for each in found if isinstance(each, str)}


def with_variables(value: dict, options: Options) -> dict:
    """Return the task with the variables of the command line, and without those of its secrets."""
    envs = value.get("envs") or {}
    if isinstance(envs, dict) and (options.env or options.secrets):
        envs = {name: each for name, each in envs.items() if name not in options.secrets}
        return {**value, "envs": {**envs, **options.env}}
    return value
